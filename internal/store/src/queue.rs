//! Which write comes next: a plain value without clock or thread, so that its rules can be tested alone.
//!
//! One job a trajectory; the last value wins. A job that must be durable is due at once and stays durable whatever
//! is asked for later; one that need not be waits a little for its successors.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use evermux_core::names::{Trajectory, UpstreamName};
use evermux_core::record::{Record, Sync};

/// How long a write that need not be durable waits for a newer value. Cursors change with every event.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(100);

/// What to do for a trajectory.
#[derive(Debug)]
pub(crate) enum Work {
    Write(Box<Record>, Sync),
    Delete(UpstreamName),
}

/// The work that is waiting for one trajectory.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) trajectory: Trajectory,
    pub(crate) work: Work,
    /// Every ticket that this work answers, its own and those of the values it replaced.
    pub(crate) tickets: Vec<u64>,
    /// Tickets of writes that came after the deletion they are waiting behind: refused.
    pub(crate) too_late: Vec<u64>,
    due: Instant,
    /// Order of arrival, between jobs that are due at the same time.
    order: u64,
}

/// All waiting work.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    jobs: HashMap<Trajectory, Job>,
    arrived: u64,
}

impl Queue {
    pub(crate) fn write(&mut self, ticket: u64, record: Record, sync: Sync, now: Instant) {
        let order = self.next_order();
        let due = if sync == Sync::Durable { now } else { now + DEBOUNCE };
        let trajectory = record.trajectory;
        let Some(job) = self.jobs.get_mut(&trajectory) else {
            let work = Work::Write(Box::new(record), sync);
            let job = Job { trajectory, work, tickets: vec![ticket], too_late: Vec::new(), due, order };
            self.jobs.insert(trajectory, job);
            return;
        };
        match &mut job.work {
            Work::Delete(_) => job.too_late.push(ticket),
            Work::Write(waiting, strongest) => {
                **waiting = record;
                *strongest = sync.max(*strongest);
                job.due = job.due.min(due);
                job.tickets.push(ticket);
            }
        }
    }

    pub(crate) fn delete(
        &mut self,
        ticket: u64,
        upstream: UpstreamName,
        trajectory: Trajectory,
        now: Instant,
    ) {
        let order = self.next_order();
        let job = self.jobs.entry(trajectory).or_insert_with(|| Job {
            trajectory,
            work: Work::Delete(upstream.clone()),
            tickets: Vec::new(),
            too_late: Vec::new(),
            due: now,
            order,
        });
        job.work = Work::Delete(upstream);
        job.due = job.due.min(now);
        job.tickets.push(ticket);
    }

    fn next_order(&mut self) -> u64 {
        self.arrived += 1;
        self.arrived
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// When the next job is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.jobs.values().map(|job| job.due).min()
    }

    /// The next job that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Job> {
        let next = self.jobs.values().filter(|job| job.due <= now).min_by_key(|job| (job.due, job.order))?;
        let trajectory = next.trajectory;
        self.jobs.remove(&trajectory)
    }

    /// The next job, due or not.
    pub(crate) fn take_any(&mut self) -> Option<Job> {
        let next = self.jobs.values().min_by_key(|job| (job.due, job.order))?;
        let trajectory = next.trajectory;
        self.jobs.remove(&trajectory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    fn sync_of(job: &Job) -> Option<Sync> {
        match &job.work {
            Work::Write(_, sync) => Some(*sync),
            Work::Delete(_) => None,
        }
    }

    #[test]
    fn a_durable_write_never_loses_to_a_lazy_one() {
        let now = Instant::now();
        for order in [[Sync::Durable, Sync::None], [Sync::None, Sync::Durable]] {
            let mut queue = Queue::default();
            queue.write(1, Record { used_ms: 1, ..sample(1) }, order[0], now);
            queue.write(2, Record { used_ms: 2, ..sample(1) }, order[1], now);
            let job = queue.take_due(now).unwrap();
            assert_eq!((sync_of(&job), job.tickets), (Some(Sync::Durable), vec![1, 2]));
            assert!(matches!(job.work, Work::Write(record, _) if record.used_ms == 2));
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn a_lazy_write_waits_from_its_first_value_on() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.write(1, sample(1), Sync::None, now);
        queue.write(2, sample(1), Sync::None, now + DEBOUNCE / 2);
        assert!(queue.take_due(now + DEBOUNCE - Duration::from_millis(1)).is_none());
        assert_eq!(queue.next_due(), Some(now + DEBOUNCE));
        assert_eq!(queue.take_due(now + DEBOUNCE).unwrap().tickets, [1, 2]);
    }

    #[test]
    fn durable_writes_go_in_order_of_arrival_and_before_lazy_ones() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.write(1, sample(1), Sync::None, now);
        for trajectory in [4, 2, 3] {
            queue.write(0, sample(trajectory), Sync::Durable, now);
        }
        let order: Vec<u128> = std::iter::from_fn(|| queue.take_any()).map(|job| job.trajectory.0).collect();
        assert_eq!(order, [4, 2, 3, 1]);
    }

    #[test]
    fn a_deletion_replaces_what_waits_and_refuses_what_comes() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.write(1, sample(1), Sync::None, now);
        queue.delete(2, sample(1).upstream, Trajectory(1), now);
        queue.write(3, sample(1), Sync::Durable, now);
        let job = queue.take_due(now).unwrap();
        assert_eq!((sync_of(&job), job.tickets, job.too_late), (None, vec![1, 2], vec![3]));
    }
}
