//! The upstream's own time: real, plus what a test has added. So leases and idle limits run out without anybody sleeping.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time since the upstream was made.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
    skew: Duration,
}

impl Default for Clock {
    fn default() -> Self {
        Self { started: Instant::now(), skew: Duration::ZERO }
    }
}

impl Clock {
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed() + self.skew
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.skew += by;
    }

    /// A moment from now as RFC 3339 text in UTC, with milliseconds.
    pub(super) fn wall_after(&self, later: Duration) -> String {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        rfc3339(since_epoch + self.skew + later)
    }
}

fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (mut year, mut day) = (1970, seconds / 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        let at = |seconds| rfc3339(Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00.000Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.000Z");
    }
}
