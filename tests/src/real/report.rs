//! What a suite says: one line per check as soon as it is known, and the counts at the end.

use std::fmt::Display;

/// Checks that held, and those that did not.
#[derive(Debug, Default)]
pub struct Report {
    held: usize,
    failed: Vec<String>,
}

impl Report {
    /// Notes a check: what it says about the product, and what was seen or what was wrong.
    pub fn check(&mut self, what: &str, outcome: Result<impl Display, impl Display>) {
        match outcome {
            Ok(seen) => {
                self.held += 1;
                println!("ok    {what}: {seen}");
            }
            Err(wrong) => {
                println!("FAIL  {what}: {wrong}");
                self.failed.push(what.to_owned());
            }
        }
    }

    /// Notes what was seen, without a judgement.
    pub fn saw(&self, what: &str, seen: impl Display) {
        println!("saw   {what}: {seen}");
    }

    /// Says what happens now, for whoever waits.
    pub fn doing(&self, what: &str) {
        println!("\n== {what}");
    }

    /// Prints the counts, and says whether everything held; nothing checked is no success.
    #[must_use]
    pub fn ends(&self) -> bool {
        println!("\n{} checks held, {} failed", self.held, self.failed.len());
        for failed in &self.failed {
            println!("  {failed}");
        }
        self.failed.is_empty() && self.held > 0
    }
}
