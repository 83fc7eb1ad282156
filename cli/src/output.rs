//! What a person and a program read: talk with prefixes, tables, JSON and YAML.

use std::io::{self, BufRead, Write};

use serde_json::Value as Json;

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: indented JSON.
    Json,
    /// For programs and people: YAML.
    Yaml,
}

impl Format {
    /// Reads a format's name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "table" => Some(Self::Table),
            "json" => Some(Self::Json),
            "yaml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// The three standard streams, or stand-ins for them.
pub struct Console<'a> {
    /// Standard output.
    pub stdout: &'a mut dyn Write,
    /// Standard error.
    pub stderr: &'a mut dyn Write,
    /// Standard input.
    pub stdin: &'a mut dyn BufRead,
    /// Whether a person sits at standard input.
    pub stdin_is_terminal: bool,
}

impl std::fmt::Debug for Console<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Console").field("stdin_is_terminal", &self.stdin_is_terminal).finish_non_exhaustive()
    }
}

/// Prints in one format: data to standard output; talk to standard output for people, to standard error beside data for
/// programs.
#[derive(Debug)]
pub struct Output<'a, 'console> {
    console: &'a mut Console<'console>,
    format: Format,
    documents: usize,
}

impl<'a, 'console> Output<'a, 'console> {
    /// An output to `console`.
    pub fn new(console: &'a mut Console<'console>, format: Format) -> Self {
        Self { console, format, documents: 0 }
    }

    /// The format of data.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// `✓ `: what was done.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn success(&mut self, message: &str) -> io::Result<()> {
        self.talk("✓ ", message)
    }

    /// `ℹ `: what else is worth knowing.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn information(&mut self, message: &str) -> io::Result<()> {
        self.talk("ℹ ", message)
    }

    /// `ℹ ` on standard error in every format: progress.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn progress(&mut self, message: &str) -> io::Result<()> {
        writeln!(self.console.stderr, "ℹ {message}")?;
        self.console.stderr.flush()
    }

    /// `⚠ ` on standard error.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn warning(&mut self, message: &str) -> io::Result<()> {
        writeln!(self.console.stderr, "⚠ {message}")
    }

    /// `✗ ` on standard error.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn error(&mut self, message: &str) -> io::Result<()> {
        writeln!(self.console.stderr, "✗ {message}")
    }

    /// Text for people, to standard output as it is.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.console.stdout.write_all(text.as_bytes())?;
        self.console.stdout.flush()
    }

    /// One document for programs. In table format it is YAML: whoever asks for a document there wants to read it.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn document(&mut self, document: &Json) -> io::Result<()> {
        match self.format {
            Format::Json => writeln!(self.console.stdout, "{document:#}")?,
            Format::Yaml | Format::Table => self.yaml(document)?,
        }
        self.console.stdout.flush()
    }

    /// One of several documents: JSON on one line each, YAML with separators.
    ///
    /// # Errors
    /// When the stream cannot be written.
    pub fn document_of_a_stream(&mut self, document: &Json) -> io::Result<()> {
        match self.format {
            Format::Json => writeln!(self.console.stdout, "{document}")?,
            Format::Yaml | Format::Table => {
                if self.documents > 0 {
                    writeln!(self.console.stdout, "---")?;
                }
                self.yaml(document)?;
            }
        }
        self.documents += 1;
        self.console.stdout.flush()
    }

    /// Whether somebody is there to answer a question.
    #[must_use]
    pub fn can_ask(&self) -> bool {
        self.console.stdin_is_terminal
    }

    /// Asks a question that is answered with yes or no; anything but a clear yes is no.
    ///
    /// # Errors
    /// When the terminal cannot be written or read.
    pub fn ask(&mut self, question: &str) -> io::Result<bool> {
        write!(self.console.stderr, "{question} [y/N]: ")?;
        self.console.stderr.flush()?;
        let mut answer = String::new();
        self.console.stdin.read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// Everything of standard input, up to `most` bytes.
    ///
    /// # Errors
    /// When it cannot be read or is no text.
    pub fn read_input(&mut self, most: u64) -> io::Result<String> {
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(&mut self.console.stdin, most), &mut text)?;
        Ok(text)
    }

    fn yaml(&mut self, document: &Json) -> io::Result<()> {
        let text = serde_saphyr::to_string(document).map_err(io::Error::other)?;
        self.console.stdout.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            self.console.stdout.write_all(b"\n")?;
        }
        Ok(())
    }

    fn talk(&mut self, prefix: &str, message: &str) -> io::Result<()> {
        match self.format {
            Format::Table => {
                writeln!(self.console.stdout, "{prefix}{message}")?;
                self.console.stdout.flush()
            }
            Format::Json | Format::Yaml => writeln!(self.console.stderr, "{prefix}{message}"),
        }
    }
}

/// `text` cut to at most `width` characters.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// Cells side by side with a blank between them, each padded to its width except the last.
#[must_use]
pub fn columns(cells: &[(&str, usize)]) -> String {
    let mut line = String::new();
    for (index, (cell, width)) in cells.iter().enumerate() {
        line.push_str(cell);
        if index + 1 < cells.len() {
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count()) + 1));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_padded_and_never_touch() {
        assert_eq!(columns(&[("ab", 4), ("c", 9)]), "ab   c");
        assert_eq!(columns(&[("abcd", 4), ("c", 9)]), "abcd c");
        assert_eq!(columns(&[("äö", 3), ("c", 9)]), "äö  c");
    }

    #[test]
    fn cut_text_has_no_control_characters() {
        assert_eq!(cut("a\u{1b}[31mb", 4), "a [3");
    }
}
