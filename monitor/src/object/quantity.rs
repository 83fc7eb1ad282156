//! Kubernetes quantities by value: `1000m` is `1`, `1Gi` is `1073741824`.
//!
//! The server stores a quantity in its canonical spelling, so texts differ where values do not (the
//! applied `1000m` reads back as `1`); comparing texts would see a difference for ever.

/// A quantity's value in billionths, the smallest unit that Kubernetes keeps. `None` when the text is not a quantity or
/// is too large for 128 bits, which is 10^10 times the largest that the server takes (2^63).
#[must_use]
pub fn billionths(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number_ends = unsigned.find(|character: char| !character.is_ascii_digit() && character != '.');
    let (number, suffix) = unsigned.split_at(number_ends.unwrap_or(unsigned.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let scale = Scale::of(suffix)?;
    // value = digits × 10^-(fraction digits) × multiplier × 10^exponent, in units of 10^-9.
    let exponent = scale.exponent.checked_add(9)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(scale.multiplier)?;
    let value = if exponent >= 0 {
        scaled.checked_mul(10_i128.checked_pow(u32::try_from(exponent).ok()?)?)?
    } else {
        // Smaller than a billionth is rounded up, as the server does.
        let divisor = 10_i128.checked_pow(exponent.unsigned_abs())?;
        scaled.checked_add(divisor - 1)? / divisor
    };
    Some(if negative { -value } else { value })
}

/// Whether two texts are the same quantity; texts that are none are compared as they stand.
#[must_use]
pub fn same(one: &str, other: &str) -> bool {
    match (billionths(one), billionths(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// What a suffix multiplies by: `multiplier` × 10^`exponent`.
struct Scale {
    multiplier: i128,
    exponent: i32,
}

impl Scale {
    fn of(suffix: &str) -> Option<Self> {
        let decimal = |exponent| Some(Self { multiplier: 1, exponent });
        let binary = |power: u32| Some(Self { multiplier: 1 << (10 * power), exponent: 0 });
        match suffix {
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            "Ki" => binary(1),
            "Mi" => binary(2),
            "Gi" => binary(3),
            "Ti" => binary(4),
            "Pi" => binary(5),
            "Ei" => binary(6),
            _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_value_are_the_same_quantity() {
        for (one, other) in [
            ("1000m", "1"),
            ("1", "1.0"),
            ("0.5", "500m"),
            ("1Gi", "1073741824"),
            ("1024Mi", "1Gi"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("12E", "12000000000000000000"),
            (".5", "0.5"),
            ("+2", "2"),
            ("1500u", "1.5m"),
        ] {
            assert!(same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn different_values_and_texts_that_are_no_quantities_differ() {
        for (one, other) in
            [("1", "2"), ("1Gi", "1G"), ("1", "1m"), ("-1", "1"), ("1x", "1"), ("", "0"), ("1.2.3", "1.23")]
        {
            assert!(!same(one, other), "{one} {other}");
        }
        assert!(same("what", "what"));
        assert_eq!(billionths("1e999"), None, "too large is not a number, not a crash");
        assert_eq!(billionths("99999999999999999999999999999999999999999999"), None);
    }
}
