//! Parallel execution of many small runs, each on one thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `work` for each of `tasks` on at most `threads` threads and returns the results in the order of the
/// tasks. Parallel work inside a task runs on the thread of the task. Returns `None` if a task returned
/// `None`. After a task has returned `None` or an error, no further task is started.
///
/// # Errors
/// Error of the first failed task in the order of `tasks`.
pub fn each<A: Sync, T: Send, E: Send>(
    threads: usize,
    tasks: &[A],
    work: impl Fn(&A) -> Result<Option<T>, E> + Sync,
) -> Result<Option<Vec<T>>, E> {
    let next_index = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let run_tasks = || {
        while let Some((index, task)) = {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            tasks.get(index).map(|task| (index, task))
        } {
            let result = work(task);
            if !matches!(result, Ok(Some(_))) {
                next_index.store(tasks.len(), Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            // A rayon pool with one thread keeps parallel work of a task on this thread. If the pool cannot
            // be made, the work is slower but has the same results.
            scope.spawn(|| match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
                Ok(pool) => pool.install(run_tasks),
                Err(_) => run_tasks(),
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.sort_by_key(|(index, _)| *index);
    let complete: Option<Vec<T>> =
        results.into_iter().map(|(_, result)| result).collect::<Result<Vec<_>, E>>()?.into_iter().collect();
    Ok(complete.filter(|complete| complete.len() == tasks.len()))
}
