//! Many runs at once, each in one thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does `work` for each of `tasks`, at most `threads` at a time, and gives the results in order. What a task does in
/// parallel stays in its thread: many small runs share no work worth sharing. `None` if one of them gave `None`; no
/// further task is begun then, or after an error.
///
/// # Errors
/// The first one, by order of the tasks that were begun.
pub fn each<A: Sync, T: Send, E: Send>(
    threads: usize,
    tasks: &[A],
    work: impl Fn(&A) -> Result<Option<T>, E> + Sync,
) -> Result<Option<Vec<T>>, E> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let go_on = || {
        while let Some((index, task)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            tasks.get(index).map(|task| (index, task))
        } {
            let result = work(task);
            if !matches!(result, Ok(Some(_))) {
                next.store(tasks.len(), Ordering::Relaxed);
            }
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            // A pool of one takes what the task would share; without it everything is as right, and slower.
            scope.spawn(|| match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
                Ok(pool) => pool.install(go_on),
                Err(_) => go_on(),
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(index, _)| *index);
    let all: Option<Vec<T>> =
        done.into_iter().map(|(_, result)| result).collect::<Result<Vec<_>, E>>()?.into_iter().collect();
    Ok(all.filter(|all| all.len() == tasks.len()))
}
