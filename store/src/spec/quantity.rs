//! Kubernetes resource quantities: `500m`, `8Gi`, `1e3` (the API reference, "Quantity").

/// Quantities are compared in billionths, the finest step that Kubernetes keeps (finer parts are rounded up there).
const BILLIONTHS: u32 = 9;
/// Largest quantity that Kubernetes keeps: 2^63 − 1 units.
const LARGEST_UNITS: u128 = (1 << 63) - 1;
/// Longest quantity text that is looked at: 19 digits of the largest number, 9 of the fraction, sign, point, exponent.
const LONGEST_TEXT: usize = 40;

/// A quantity in billionths of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quantity(u128);

impl Quantity {
    /// Reads a non-negative quantity; `None` when the text is not one or is above 2^63 − 1.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() > LONGEST_TEXT {
            return None;
        }
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let suffix_start = unsigned.find(|character: char| !character.is_ascii_digit() && character != '.');
        let (number, suffix) = unsigned.split_at(suffix_start.unwrap_or(unsigned.len()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (binary_exponent, decimal_exponent) = exponents(suffix)?;
        let mut value = 0_u128;
        for digit in whole.bytes().chain(fraction.bytes()) {
            value = value.checked_mul(10)?.checked_add(u128::from(digit - b'0'))?;
        }
        if value == 0 {
            return Some(Self(0));
        }
        value = value.checked_mul(1_u128.checked_shl(binary_exponent)?)?;
        let power = decimal_exponent + i32::try_from(BILLIONTHS).ok()? - i32::try_from(fraction.len()).ok()?;
        let factor = 10_u128.checked_pow(power.unsigned_abs());
        let billionths =
            if power >= 0 { value.checked_mul(factor?)? } else { factor.map_or(1, |factor| value.div_ceil(factor)) };
        (billionths <= LARGEST_UNITS * 10_u128.pow(BILLIONTHS)).then_some(Self(billionths))
    }

    /// The quantity in billionths of its unit.
    pub(super) fn billionths(self) -> u128 {
        self.0
    }

    /// The number of whole units, when it is whole.
    pub(super) fn whole_units(self) -> Option<u128> {
        let unit = 10_u128.pow(BILLIONTHS);
        self.0.is_multiple_of(unit).then_some(self.0 / unit)
    }
}

/// Powers of two and of ten of a suffix.
fn exponents(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || digits.len() > 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            (0, exponent.parse().ok()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_quantities_are_equal_however_they_are_written() {
        for (one, other) in [
            ("1", "1000m"),
            ("1Ki", "1024"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1k"),
            ("2E3", "2000"),
            ("0.5", "500m"),
            (".5", "5e-1"),
            ("+1", "1."),
        ] {
            assert!(Quantity::parse(one).is_some(), "{one}");
            assert_eq!(Quantity::parse(one), Quantity::parse(other), "{one} {other}");
        }
    }

    #[test]
    fn quantities_are_ordered_by_value() {
        let in_order = ["0", "1n", "1m", "1", "1k", "1Ki", "1M", "1Mi", "8Gi", "1T", "1E", "7Ei"];
        for pair in in_order.windows(2) {
            assert!(Quantity::parse(pair[0]) < Quantity::parse(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in
            ["", "-1", "m", "1 Gi", "1gb", "1GiB", "1e", "1e1000", "1.2.3", "9223372036854775808", "16Ei", "0x10"]
        {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
        assert!(Quantity::parse("9223372036854775807").is_some());
    }

    #[test]
    fn whole_units_are_known() {
        assert_eq!(Quantity::parse("8").and_then(Quantity::whole_units), Some(8));
        assert_eq!(Quantity::parse("500m").and_then(Quantity::whole_units), None);
    }
}
