//! What the core promises, one topic a file.

#[path = "../common/mod.rs"]
mod common;

mod asks;
mod budgets;
mod cancels;
mod crowd;
mod doubts;
mod drift;
mod ends;
mod field;
mod first_use;
mod frozen;
mod handles;
mod levels;
mod limits;
mod lists;
mod loss;
mod memory;
mod news;
mod numbers;
mod offers;
mod own;
mod plain;
mod pool;
mod replays;
mod rotation;
mod seams;
mod shortage;
mod streams;
mod subscriptions;
mod symptoms;
mod takeover;
mod trails;
mod trouble;
mod vendor;
mod waking;
