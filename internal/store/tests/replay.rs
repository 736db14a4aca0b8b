//! The fuzzers' corpora of records and call journals on stable.

#[path = "../../../tests/fuzz/checks/journal.rs"]
mod journal;
#[path = "../../../tests/fuzz/checks/records.rs"]
mod records;
#[path = "../../../tests/fuzz/checks/replay.rs"]
mod replay;

#[test]
fn record_corpus() {
    replay::replay("records", 5, records::check);
}

#[test]
fn journal_corpus() {
    replay::replay("journal", 5, journal::check);
}
