//! Work on several processors whose results come in the order of what went in.

use std::sync::mpsc::sync_channel;
use std::thread;

/// Threads that work; one more hands out and the caller's takes in, both of which have less to do.
const WORKERS: usize = 2;
/// Items, and results, that wait for one worker at most: what they take of memory is bounded.
const WAITING: usize = 2;

/// Calls `work` with each item, on several threads, and `take` with each result, in the order of the items, on this one.
pub fn in_order<I: Send, T: Send>(
    items: impl Iterator<Item = I> + Send,
    work: impl Fn(I) -> T + Sync,
    mut take: impl FnMut(T),
) {
    thread::scope(|scope| {
        let (mut inlets, mut outlets) = (Vec::new(), Vec::new());
        for _ in 0..WORKERS {
            let (inlet, given) = sync_channel::<I>(WAITING);
            let (done, outlet) = sync_channel::<T>(WAITING);
            let work = &work;
            scope.spawn(move || {
                for item in given {
                    if done.send(work(item)).is_err() {
                        return;
                    }
                }
            });
            inlets.push(inlet);
            outlets.push(outlet);
        }
        scope.spawn(move || {
            for (item, inlet) in items.zip(inlets.iter().cycle()) {
                if inlet.send(item).is_err() {
                    return;
                }
            }
        });
        for outlet in outlets.iter().cycle() {
            let Ok(result) = outlet.recv() else { return };
            take(result);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items_each_once() {
        for count in [0, 1, 2, 3, 1000] {
            let mut taken = Vec::new();
            // Every third item takes longer.
            let work = |item: u64| (0..item % 3 * 1000).fold(item, |sum, add| sum ^ add ^ add);
            in_order(0..count, work, |result| taken.push(result));
            assert_eq!(taken, (0..count).collect::<Vec<_>>());
        }
    }
}
