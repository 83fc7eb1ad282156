//! Many runs, on as many threads as there are cores, with what went wrong of all of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::line::Asked;

/// How many failures are shown whole.
const SHOWN: usize = 5;

/// Between two lines on how far it is: a small suite ends before the first one.
const PROGRESS: Duration = Duration::from_secs(60);

/// Runs every job; returns the results in order.
///
/// # Errors
/// How many failed, with the first few failures.
pub fn all<J: Send + std::fmt::Debug, T: Send>(
    jobs: Vec<J>,
    run: impl Fn(&J) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let count = jobs.len();
    let queue: Mutex<VecDeque<(usize, J)>> = Mutex::new(jobs.into_iter().enumerate().collect());
    let results: Mutex<Vec<(usize, anyhow::Result<T>)>> = Mutex::default();
    let running: Mutex<BTreeMap<usize, (Instant, String)>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        // Every worker holds a sender: when the last one is gone there is nothing more to tell.
        let (at_work, all_done) = channel::<()>();
        for _ in 0..threads {
            let at_work = at_work.clone();
            let (queue, running, results, run) = (&queue, &running, &results, &run);
            scope.spawn(move || {
                let _at_work = at_work;
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((index, job)) = job else { return };
                    let name = format!("{job:?}");
                    let begun = (Instant::now(), name.clone());
                    running.lock().unwrap_or_else(PoisonError::into_inner).insert(index, begun);
                    let result = run(&job).map_err(|error| error.context(name));
                    running.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
        drop(at_work);
        while all_done.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
            let (done, failed) = {
                let results = results.lock().unwrap_or_else(PoisonError::into_inner);
                (results.len(), results.iter().filter(|(_, result)| result.is_err()).count())
            };
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            let running: Vec<String> =
                running.values().map(|(since, job)| format!("{job} for {} s", since.elapsed().as_secs())).collect();
            println!("{done} of {count} runs done, {failed} failed; at work: {}", running.join("; "));
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    let mut good = Vec::with_capacity(count);
    let mut bad = Vec::new();
    for (_, result) in results {
        match result {
            Ok(result) => good.push(result),
            Err(error) => bad.push(format!("{error:#}")),
        }
    }
    if bad.is_empty() {
        return Ok(good);
    }
    let shown = bad.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n---\n");
    anyhow::bail!("{} of {count} runs failed:\n{shown}", bad.len())
}

/// The requests, counted from 1, to do something at: all of them, or every write with its neighbours and of the long rows of
/// reads that look for what is left a few, others for each variant.
#[must_use]
pub fn moments(asked: &[Asked], all: bool, variant: u32) -> Vec<usize> {
    const STRIDE: usize = 13;
    let writes = |index: usize| asked.get(index).is_some_and(|asked| asked.is_write);
    let at_a_write = |index: usize| writes(index) || writes(index + 1) || index > 0 && writes(index - 1);
    let some = |index: usize| index % STRIDE == usize::try_from(variant).unwrap_or(0) % STRIDE;
    (0..asked.len()).filter(|index| all || at_a_write(*index) || some(*index)).map(|index| index + 1).collect()
}
