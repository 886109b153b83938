//! A thread that works on orders beside the recorder and hands over what it finds.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What such a thread sends.
pub(super) enum Answer<F> {
    Found(F),
    /// An order that is waited for has been carried out.
    Done,
}

/// The recorder's end. The thread ends with it.
pub(super) struct Errand<O, F> {
    orders: Option<Sender<O>>,
    answers: Receiver<Answer<F>>,
    thread: Option<JoinHandle<()>>,
}

impl<O: Send + 'static, F: Send + 'static> Errand<O, F> {
    /// Starts a thread that runs `work` until its orders end.
    pub(super) fn start(
        name: &str,
        work: impl FnOnce(&Receiver<O>, &Sender<Answer<F>>) + Send + 'static,
    ) -> io::Result<Errand<O, F>> {
        let (orders, queue) = channel();
        let (results, answers) = channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&queue, &results))?;
        Ok(Errand { orders: Some(orders), answers, thread: Some(thread) })
    }

    pub(super) fn order(&self, order: O) {
        if let Some(orders) = &self.orders {
            // A thread that has come to harm is told by the next `carry_out`, at the latest at the recording's end.
            let _ = orders.send(order);
        }
    }

    /// Gives an order, waits until it is carried out, and returns what was found up to then; false where the thread has
    /// come to harm and will find nothing any more.
    pub(super) fn carry_out(&self, order: O) -> (Vec<F>, bool) {
        self.order(order);
        let mut found = Vec::new();
        // A thread that came to harm closes the channel.
        for answer in &self.answers {
            match answer {
                Answer::Found(one) => found.push(one),
                Answer::Done => return (found, true),
            }
        }
        (found, false)
    }

    /// What came in since the last call.
    pub(super) fn take(&self) -> impl Iterator<Item = F> + '_ {
        self.answers.try_iter().filter_map(|answer| match answer {
            Answer::Found(found) => Some(found),
            Answer::Done => None,
        })
    }
}

impl<O, F> Drop for Errand<O, F> {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Harm was told by `carry_out`.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_comes_in_order_up_to_the_order_waited_for() {
        let errand = Errand::start("double", |queue: &Receiver<u32>, results: &Sender<Answer<u32>>| {
            for order in queue {
                results.send(Answer::Found(order * 2)).unwrap();
                if order == 0 {
                    results.send(Answer::Done).unwrap();
                }
            }
        })
        .unwrap();
        errand.order(1);
        assert_eq!(errand.carry_out(0), (vec![2, 0], true));
        assert_eq!(errand.take().count(), 0);
    }

    #[test]
    fn a_thread_that_comes_to_harm_is_told() {
        let errand = Errand::start("harmed", |queue: &Receiver<u32>, results: &Sender<Answer<u32>>| {
            for order in queue {
                results.send(Answer::Found(order)).unwrap();
                if order == 2 {
                    return;
                }
            }
        })
        .unwrap();
        assert_eq!(errand.carry_out(2), (vec![2], false));
        errand.order(3);
        assert_eq!(errand.carry_out(4), (Vec::new(), false));
    }
}
