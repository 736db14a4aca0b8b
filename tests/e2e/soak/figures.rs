//! What must not grow: memory, descriptors, and what lies on disk.

use std::fs;
use std::path::Path;

use evermux_testkit::Harness;

/// In KiB over one daemon's life: what an allocator may keep back. The longest life has tens of thousands of calls, of
/// which none may keep more than a hundred bytes or so.
const MEMORY_SLACK: u64 = 3 * 1024;
/// Connections that are kept open for the next calls.
const DESCRIPTOR_SLACK: usize = 48;
/// One session, one record.
const LARGEST_RECORD: u64 = 16 * 1024;
/// Call journals are shortened at a megabyte, one a process, and one more until its owner's end is seen.
const LARGEST_JOURNAL: u64 = 3 * 1024 * 1024;
/// In bytes for one daemon's life, whatever is called in it.
const LOG_OF_A_LIFE: u64 = 16 * 1024;

/// How it is at one moment, with nobody calling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pid: u32,
    calls: u64,
    /// In KiB, shared pages by their part.
    memory: u64,
    descriptors: usize,
    records: Pile,
    journal: Pile,
    log: Pile,
}

/// Files of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pile {
    files: usize,
    bytes: u64,
}

impl Pile {
    fn of(directory: &Path) -> Self {
        let entries = fs::read_dir(directory).unwrap().flatten();
        // One that is gone meanwhile was put in another's place.
        let sizes: Vec<u64> = entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).collect();
        Self { files: sizes.len(), bytes: sizes.iter().sum() }
    }
}

impl Sample {
    /// How this daemon is now.
    pub(super) fn of(harness: &Harness, pid: u32, calls: u64) -> Self {
        let state = harness.state_dir();
        Self {
            pid,
            calls,
            memory: memory(pid),
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            records: Pile::of(&state.join("records")),
            journal: Pile::of(&state.join("journal")),
            log: Pile::of(&state.join("log")),
        }
    }
}

/// What is its own alone. Pages of the program count for less the more others run it: another test that ends is no growth.
fn memory(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The figures, for people.
pub(super) fn show(samples: &[(Sample, Sample)]) {
    for (warm, late) in samples {
        eprintln!("warm {warm:?}\nlate {late:?}");
    }
}

/// Panics if anything grew, within one daemon's life or from one to the next.
pub(super) fn check_flat(samples: &[(Sample, Sample)]) {
    let figures = format!("{samples:?}");
    let first = samples.first().unwrap().1;
    for (life, (warm, late)) in samples.iter().enumerate() {
        assert_eq!(warm.pid, late.pid, "a daemon ended by itself\n{figures}");
        assert!(late.calls > warm.calls, "nobody called\n{figures}");
        assert!(late.memory <= warm.memory + MEMORY_SLACK, "memory grows\n{figures}");
        assert!(late.memory <= first.memory + MEMORY_SLACK, "memory grows from life to life\n{figures}");
        assert!(late.descriptors <= warm.descriptors + DESCRIPTOR_SLACK, "descriptors\n{figures}");
        assert!(
            late.descriptors <= first.descriptors + DESCRIPTOR_SLACK,
            "descriptors, over lives\n{figures}"
        );
        assert!(late.records.files == 1 && late.records.bytes <= LARGEST_RECORD, "records\n{figures}");
        assert!(late.journal.files <= first.journal.files + 1, "journals\n{figures}");
        assert!(late.journal.bytes <= LARGEST_JOURNAL, "journals\n{figures}");
        assert!(late.log.bytes <= LOG_OF_A_LIFE * (life as u64 + 1), "log\n{figures}");
    }
}
