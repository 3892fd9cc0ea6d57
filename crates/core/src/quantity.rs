//! Kubernetes quantities of storage.

/// Bytes of a quantity such as `10Gi`, `500M`, `1e9` or `4096`; rounded up. `None` when it is none.
pub fn bytes(text: &str) -> Option<i64> {
    const SUFFIXES: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1048576.0),
        ("Gi", 1073741824.0),
        ("Ti", 1099511627776.0),
        ("Pi", 1125899906842624.0),
        ("Ei", 1152921504606846976.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        ("m", 1e-3),
    ];
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
        .unwrap_or((text, 1.0));
    let value = number.parse::<f64>().ok().filter(|v| v.is_finite())? * factor;
    (value >= 0.0 && value < i64::MAX as f64).then(|| value.ceil() as i64)
}

/// A number of bytes as Kubernetes writes it: in the largest binary unit that divides it, `10Gi`.
pub fn text(bytes: i64) -> String {
    let units = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"]
        .into_iter()
        .zip((1..=6).rev());
    let fit = units
        .map(|(unit, power)| (unit, 1_i64 << (10 * power)))
        .find(|(_, size)| bytes != 0 && bytes % size == 0);
    fit.map_or_else(
        || bytes.to_string(),
        |(unit, size)| format!("{}{unit}", bytes / size),
    )
}

#[cfg(test)]
mod tests {
    use super::{bytes, text};

    #[test]
    fn bytes_are_written_in_the_largest_unit_that_divides_them() {
        for (n, expect) in [
            (0, "0"),
            (1, "1"),
            (1 << 20, "1Mi"),
            (10 << 30, "10Gi"),
            (3 << 29, "1536Mi"),
            (1025, "1025"),
        ] {
            assert_eq!(text(n), expect);
            assert_eq!(bytes(&text(n)), Some(n));
        }
    }

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expect) in [
            ("10Gi", Some(10 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("500M", Some(500_000_000)),
            ("4096", Some(4096)),
            ("1e3", Some(1000)),
            ("0", Some(0)),
            ("-1Gi", None),
            ("ten", None),
            ("", None),
            ("Gi", None),
        ] {
            assert_eq!(bytes(text), expect, "{text}");
        }
    }
}
