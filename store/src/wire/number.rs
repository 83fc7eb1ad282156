//! Decimal numbers as DynamoDB keeps them: up to 38 significant digits and an exponent, compared by value.

/// Most significant digits that DynamoDB keeps (its developer guide, "Data types": 38 digits of precision).
const MOST_SIGNIFICANT_DIGITS: usize = 38;
/// Largest power of ten of the first digit: numbers go up to 9.9999999999999999999999999999999999999E+125.
const LARGEST_MAGNITUDE: i64 = 125;
/// Smallest power of ten of the first digit: positive numbers start at 1E-130.
const SMALLEST_MAGNITUDE: i64 = -130;
/// Longest number text that is looked at: every number that DynamoDB takes can be written in fewer characters.
const LONGEST_TEXT: usize = 400;

/// A number by value: `digits` × 10^`exponent`. Equal numbers are equal structures, whatever their text was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Decimal {
    negative: bool,
    /// `0` to `9`, without leading or trailing zeros; empty for zero.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Reads a number text: sign, digits, fraction, exponent. `None` when it is not one, or is out of DynamoDB's range.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.len() > LONGEST_TEXT || !text.is_ascii() {
            return None;
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (mantissa, written_exponent) = match rest.find(['e', 'E']) {
            Some(position) => {
                (&rest[..position], rest[position + 1..].parse::<i64>().ok().filter(|e| e.abs() < 10_000)?)
            }
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
        let mut exponent = written_exponent - i64::try_from(fraction.len()).ok()?;
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        let leading_zeros = digits.iter().take_while(|digit| **digit == 0).count();
        digits.drain(..leading_zeros);
        if digits.is_empty() {
            return Some(Self { negative: false, digits, exponent: 0 });
        }
        let magnitude = exponent + i64::try_from(digits.len()).ok()? - 1;
        let in_range = (SMALLEST_MAGNITUDE..=LARGEST_MAGNITUDE).contains(&magnitude);
        (digits.len() <= MOST_SIGNIFICANT_DIGITS && in_range).then_some(Self { negative, digits, exponent })
    }

    /// Whether it has no fraction.
    pub(crate) fn is_integral(&self) -> bool {
        self.exponent >= 0
    }

    /// The one text of this value: no exponent, no `+`, no needless zeros.
    pub(crate) fn text(&self) -> String {
        if self.digits.is_empty() {
            return "0".to_owned();
        }
        let mut text = String::new();
        if self.negative {
            text.push('-');
        }
        let digit = |value: &u8| char::from(b'0' + value);
        if self.exponent >= 0 {
            text.extend(self.digits.iter().map(digit));
            text.extend((0..self.exponent).map(|_| '0'));
            return text;
        }
        let fraction_length = usize::try_from(-self.exponent).unwrap_or(usize::MAX);
        if let Some(whole_length) = self.digits.len().checked_sub(fraction_length).filter(|length| *length > 0) {
            text.extend(self.digits[..whole_length].iter().map(digit));
            text.push('.');
            text.extend(self.digits[whole_length..].iter().map(digit));
        } else {
            text.push_str("0.");
            text.extend((self.digits.len()..fraction_length).map(|_| '0'));
            text.extend(self.digits.iter().map(digit));
        }
        text
    }

    /// The value when it is integral and fits.
    pub(crate) fn to_i64(&self) -> Option<i64> {
        if self.is_integral() { self.text().parse().ok() } else { None }
    }

    /// What it adds to the size of an item: about half a byte per significant digit, plus one, plus one for a sign.
    pub(crate) fn size_bytes(&self) -> usize {
        self.digits.len().div_ceil(2) + 1 + usize::from(self.negative)
    }
}
