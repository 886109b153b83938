//! Where a provider keeps the counters of a send queue.
//!
//! A completion names the entry of the queue by its number, and only the provider knows which entry a post goes to. Its
//! structure is private and differs between versions, but what it must do is known: a counter of requests (`head`)
//! goes up by the number of requests posted, the next word (`tail`) follows it, and the one after that (`cur_post`) goes
//! up by the entries that they take, one to sixteen each. The words for which that held over several posts, if
//! they are the only ones, are the counters.

use std::collections::HashMap;

use profiler_common::verbs::{IMAGES, PROVIDERS, QP_PRIVATE};

use crate::probes::event::QueueImage;
use crate::target::FileId;
use crate::trace::rdma::RdmaAnchor;

/// Images of one queue pair that the counters must have been right in.
const NEEDED: usize = 4;
/// Queue pairs whose images are kept at a time.
const QUEUES_MAX: usize = 256;
/// Entries that one request can take.
const ENTRIES_MOST: u32 = 16;
/// Entries that a send queue can have.
const QUEUE_MOST: u32 = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Learner {
    providers: Vec<(FileId, u64)>,
    /// Of providers that are known.
    offsets: HashMap<u32, u32>,
    images: HashMap<(u32, u64, u32), Vec<QueueImage>>,
}

impl Learner {
    /// The number of the provider whose `post_send` is there.
    pub(super) fn provider(&mut self, place: (FileId, u64)) -> Option<u32> {
        let number = self.providers.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.providers.push(place);
            self.providers.len() - 1
        });
        u32::try_from(number).ok().filter(|number| *number < PROVIDERS)
    }

    /// The number of the provider in this file.
    pub(super) fn provider_of(&self, file: FileId) -> Option<u32> {
        self.providers.iter().position(|known| known.0 == file).and_then(|number| u32::try_from(number).ok())
    }

    /// The offset of `cur_post` in a queue pair of the image's provider, when this image made it known. Then, and
    /// later, the entries that posts went to are told.
    pub(super) fn take(&mut self, image: &QueueImage, tell: &mut dyn FnMut(RdmaAnchor)) -> Option<u32> {
        if let Some(offset) = self.offsets.get(&image.provider) {
            anchor(image, *offset).into_iter().for_each(tell);
            return None;
        }
        let key = (image.pid, image.qp, image.number);
        if self.images.len() >= QUEUES_MAX && !self.images.contains_key(&key) {
            return None;
        }
        let images = self.images.entry(key).or_default();
        if images.len() >= IMAGES as usize {
            return None;
        }
        images.push(image.clone());
        let offset = counter_offset(images)?;
        self.offsets.insert(image.provider, offset);
        self.images.retain(|_, images| {
            let own = images.iter().filter(|known| known.provider == image.provider);
            own.filter_map(|known| anchor(known, offset)).for_each(&mut *tell);
            images.first().is_some_and(|first| first.provider != image.provider)
        });
        Some(offset)
    }
}

fn anchor(image: &QueueImage, offset: u32) -> Option<RdmaAnchor> {
    let at = (offset as usize).checked_sub(QP_PRIVATE as usize)? / 4;
    let counter = (image.words.get(at)? & 0xffff) as u16;
    Some(RdmaAnchor { time_ns: image.time_ns, pid: image.pid, qp: image.number, counter })
}

/// The offset of `cur_post` in images of one queue pair, in the order of the posts.
fn counter_offset(images: &[QueueImage]) -> Option<u32> {
    let images = images.get(images.len().checked_sub(NEEDED)?..)?;
    let words = images.iter().map(|image| image.words.len()).min()?;
    let mut fitting = (0..words.saturating_sub(2)).filter(|at| fits(images, *at));
    let at = fitting.next()?;
    if fitting.next().is_some() {
        return None;
    }
    u32::try_from(QP_PRIVATE as usize + 4 * (at + 2)).ok()
}

fn fits(images: &[QueueImage], at: usize) -> bool {
    let word = |image: &QueueImage, at: usize| image.words.get(at).copied().unwrap_or(0);
    let held = images.iter().all(|image| word(image, at).wrapping_sub(word(image, at + 1)) <= QUEUE_MOST);
    held && images.array_windows().all(|[before, after]| {
        let step = |at| word(after, at).wrapping_sub(word(before, at));
        let entries = step(at + 2);
        step(at) == before.posted
            && before.posted > 0
            && (before.posted..=before.posted.saturating_mul(ENTRIES_MOST)).contains(&entries)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue pair of 32 words with its counters from word 20 on.
    fn image(head: u32, tail: u32, next: u32, posted: u32) -> QueueImage {
        let mut words: Vec<u32> = (0..32).map(|word| word * 77).collect();
        words[20] = head;
        words[21] = tail;
        words[22] = next;
        QueueImage { time_ns: u64::from(head), pid: 1, qp: 0x1000, number: 7, provider: 3, posted, words }
    }

    #[test]
    fn the_counters_are_known_after_a_few_posts() {
        let mut learner = Learner::default();
        let mut told = Vec::new();
        let mut take =
            |image| learner.take(&image, &mut |anchor| told.push((anchor.time_ns, anchor.counter)));
        assert_eq!(take(image(100, 98, 300, 1)), None);
        assert_eq!(take(image(101, 98, 302, 2)), None);
        assert_eq!(take(image(103, 101, 304, 1)), None);
        assert_eq!(take(image(104, 104, 305, 1)), Some(352 + 4 * 22));
        assert_eq!(take(image(105, 104, 306, 1)), None, "it is known already");
        assert_eq!(told, [(100, 300), (101, 302), (103, 304), (104, 305), (105, 306)]);
    }

    #[test]
    fn counters_that_do_not_go_up_by_what_was_posted_are_none() {
        let images = [image(1, 0, 1, 1), image(2, 0, 2, 1), image(2, 0, 2, 1), image(3, 0, 3, 1)];
        assert_eq!(counter_offset(&images), None, "a post was refused");
        let images = [image(1, 0, 1, 1), image(2, 0, 30, 1), image(3, 0, 31, 1), image(4, 0, 32, 1)];
        assert_eq!(counter_offset(&images), None, "more entries than a request can take");
        let images = [image(1, 9, 1, 1), image(2, 9, 2, 1), image(3, 9, 3, 1), image(4, 9, 4, 1)];
        assert_eq!(counter_offset(&images), None, "more done than posted");
    }

    #[test]
    fn two_places_that_fit_are_as_good_as_none() {
        let double = |head: u32| {
            let mut image = image(head, 0, head, 1);
            (image.words[4], image.words[5], image.words[6]) = (head, 0, head);
            image
        };
        assert_eq!(counter_offset(&[double(1), double(2), double(3), double(4)]), None);
    }

    #[test]
    fn counters_may_wrap_around() {
        let images: Vec<QueueImage> =
            (0..4_u32).map(|step| image(u32::MAX.wrapping_add(step), u32::MAX, 65534 + step, 1)).collect();
        assert_eq!(counter_offset(&images), Some(352 + 4 * 22));
    }

    #[test]
    fn providers_are_numbered_within_the_programs_table() {
        let mut learner = Learner::default();
        let file = FileId::default();
        assert_eq!(learner.provider((file, 5)), Some(0));
        assert_eq!(learner.provider((file, 6)), Some(1));
        assert_eq!(learner.provider((file, 5)), Some(0));
        for place in 100..200 {
            learner.provider((file, place));
        }
        assert_eq!(learner.provider((file, 1000)), None);
    }
}
