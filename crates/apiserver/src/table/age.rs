//! Durations as kubectl shows them.

use jiff::Timestamp;
use serde_json::Value;

/// A duration of `seconds` in two units at most, coarser the longer it is: `90s`, `5m30s`, `2d3h`.
pub fn human_duration(seconds: i64) -> String {
    // A little skew between clocks counts as now.
    if seconds < -1 {
        return "<invalid>".to_string();
    }
    if seconds < 0 {
        return "0s".to_string();
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{small}{small_unit}")
        }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () if days < 8 * 365 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

/// The time since an RFC 3339 timestamp; `<unknown>` if there is none.
pub(super) fn since(timestamp: &Value, now: Timestamp) -> String {
    match read(timestamp) {
        Some(then) => human_duration(now.as_second() - then.as_second()),
        None => "<unknown>".to_string(),
    }
}

/// The moment that an RFC 3339 string names.
pub(super) fn read(timestamp: &Value) -> Option<Timestamp> {
    timestamp.as_str()?.parse().ok()
}
