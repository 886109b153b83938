//! The recorder's side of the shared file, read and written as a file: a target that shrinks it gives an error here,
//! and no fault. What is in it is checked before it is used.

use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;

pub use profiler_common::agent::Activity;
use profiler_common::agent::{
    CONTROL, Control, Kind, MAGIC, NAME_LEN, NAMES, NameHead, SLOTS, Slot, State, VERSION,
};

/// Slots taken in one go.
const BATCH: usize = 4096;

/// The shared file.
#[derive(Debug)]
pub struct Ring {
    file: File,
    tail: u64,
    names: u64,
}

impl Ring {
    /// Writes the first page into a file that the agent has made, [`SIZE`] bytes of 0.
    pub fn adopt(file: File, now_ns: u64) -> io::Result<Ring> {
        let ring = Ring { file, tail: 0, names: 0 };
        ring.put(offset_of!(Control, magic), &MAGIC.to_ne_bytes())?;
        ring.put(offset_of!(Control, version), &VERSION.to_ne_bytes())?;
        ring.beat(now_ns)?;
        Ok(ring)
    }

    /// The same file for another thread, to say that the recorder lives.
    pub fn try_clone(&self) -> io::Result<Ring> {
        Ok(Ring { file: self.file.try_clone()?, tail: self.tail, names: self.names })
    }

    pub fn beat(&self, now_ns: u64) -> io::Result<()> {
        self.put(offset_of!(Control, alive_ns), &now_ns.to_ne_bytes())
    }

    pub fn ask_to_leave(&self) -> io::Result<()> {
        self.put(offset_of!(Control, leave), &1_u32.to_ne_bytes())
    }

    pub fn control(&self) -> io::Result<Control> {
        let mut bytes = [0; size_of::<Control>()];
        self.file.read_exact_at(&mut bytes, 0)?;
        let u64_at = |offset| read_u64(&bytes, offset);
        let u32_at = |offset| read_u32(&bytes, offset);
        Ok(Control {
            magic: u64_at(offset_of!(Control, magic)),
            version: u32_at(offset_of!(Control, version)),
            leave: u32_at(offset_of!(Control, leave)),
            alive_ns: u64_at(offset_of!(Control, alive_ns)),
            tail: u64_at(offset_of!(Control, tail)),
            head: u64_at(offset_of!(Control, head)),
            names: u64_at(offset_of!(Control, names)),
            dropped: u64_at(offset_of!(Control, dropped)),
            cupti_dropped: u64_at(offset_of!(Control, cupti_dropped)),
            names_dropped: u64_at(offset_of!(Control, names_dropped)),
            unfinished: u64_at(offset_of!(Control, unfinished)),
            callback_ns: u64_at(offset_of!(Control, callback_ns)),
            state: u32_at(offset_of!(Control, state)),
            step: u32_at(offset_of!(Control, step)),
            result: u32_at(offset_of!(Control, result)),
            cupti_version: u32_at(offset_of!(Control, cupti_version)),
            tid: u32_at(offset_of!(Control, tid)),
            no_launches: u32_at(offset_of!(Control, no_launches)),
        })
    }

    /// What the agent says that it does; `None` for a number without a meaning.
    pub fn state(&self) -> io::Result<Option<State>> {
        Ok(State::from_u32(self.control()?.state))
    }

    /// Takes the activities that are complete, up to a bound; returns whether there may be more. Slots that make no
    /// sense are passed over and counted in `damaged`.
    pub fn take(&mut self, into: &mut Vec<Activity>, damaged: &mut u64) -> io::Result<bool> {
        let index = self.tail as usize & (SLOTS - 1);
        let count = BATCH.min(SLOTS - index);
        let offset = (CONTROL + NAMES + index * size_of::<Slot>()) as u64;
        let mut bytes = vec![0; count * size_of::<Slot>()];
        self.file.read_exact_at(&mut bytes, offset)?;
        let is_next = |number: usize, bytes: &[u8]| {
            read_u32(bytes, number * size_of::<Slot>()) == self.tail.wrapping_add(number as u64 + 1) as u32
        };
        let complete = (0..count).take_while(|number| is_next(*number, &bytes)).count();
        if complete == 0 {
            return Ok(false);
        }
        // Once more: what was seen as complete is now read as a whole.
        bytes.truncate(complete * size_of::<Slot>());
        self.file.read_exact_at(&mut bytes, offset)?;
        for slot in bytes.chunks_exact(size_of::<Slot>()) {
            match activity(slot) {
                Some(activity) => into.push(activity),
                None => *damaged += 1,
            }
        }
        self.tail = self.tail.wrapping_add(complete as u64);
        self.put(offset_of!(Control, tail), &self.tail.to_ne_bytes())?;
        Ok(complete == count)
    }

    /// Names that came in since the last call, with their hashes; at most [`NAMES`] bytes ever.
    pub fn take_names(&mut self) -> io::Result<Vec<(u64, String)>> {
        let written = self.control()?.names.min(NAMES as u64);
        let len = written.saturating_sub(self.names) as usize;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, CONTROL as u64 + self.names)?;
        let mut found = Vec::new();
        let mut rest = bytes.as_slice();
        while let Some((head, tail)) = rest.split_at_checked(size_of::<NameHead>()) {
            let hash = read_u64(head, offset_of!(NameHead, hash));
            let len = read_u32(head, offset_of!(NameHead, len)) as usize;
            let room = (size_of::<NameHead>() + len).next_multiple_of(8);
            let complete = read_u32(head, offset_of!(NameHead, complete)) == 1;
            let (Some(text), true) = (tail.get(..len), complete && len <= NAME_LEN) else { break };
            found.push((hash, String::from_utf8_lossy(text).into_owned()));
            self.names += room as u64;
            rest = rest.get(room..).unwrap_or_default();
        }
        Ok(found)
    }

    fn put(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset as u64)
    }
}

fn activity(slot: &[u8]) -> Option<Activity> {
    let u32_at = |offset| read_u32(slot, offset);
    let u64_at = |offset| read_u64(slot, offset);
    let kind = match u32_at(offset_of!(Slot, kind)) as u16 {
        1 => Kind::Kernel,
        2 => Kind::Copy,
        3 => Kind::Launch,
        4 => Kind::Sync,
        _ => return None,
    };
    let activity = Activity {
        kind,
        detail: (u32_at(offset_of!(Slot, kind)) >> 16) as u16,
        name: u64_at(offset_of!(Slot, name)),
        start_ns: u64_at(offset_of!(Slot, start_ns)),
        end_ns: u64_at(offset_of!(Slot, end_ns)),
        bytes: u64_at(offset_of!(Slot, bytes)),
        device: u32_at(offset_of!(Slot, device)),
        stream: u32_at(offset_of!(Slot, stream)),
        correlation: u32_at(offset_of!(Slot, correlation)),
        tid: u32_at(offset_of!(Slot, tid)),
    };
    (activity.end_ns >= activity.start_ns && activity.end_ns != 0).then_some(activity)
}

fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |eight| u64::from_ne_bytes(*eight))
}

fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_ne_bytes(*four))
}

#[cfg(test)]
mod tests {
    use profiler_common::agent::SIZE;

    use super::*;

    fn ring() -> Ring {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE as u64).unwrap();
        Ring::adopt(file, 7).unwrap()
    }

    fn slot(ring: &Ring, number: u64, kind: u16, start_ns: u64, end_ns: u64) {
        let at =
            |offset: usize| CONTROL + NAMES + (number as usize & (SLOTS - 1)) * size_of::<Slot>() + offset;
        ring.put(at(offset_of!(Slot, kind)), &kind.to_ne_bytes()).unwrap();
        ring.put(at(offset_of!(Slot, start_ns)), &start_ns.to_ne_bytes()).unwrap();
        ring.put(at(offset_of!(Slot, end_ns)), &end_ns.to_ne_bytes()).unwrap();
        ring.put(at(0), &(number as u32).wrapping_add(1).to_ne_bytes()).unwrap();
    }

    #[test]
    fn takes_complete_slots_in_their_order_and_no_further() {
        let mut ring = ring();
        slot(&ring, 0, 1, 10, 20);
        slot(&ring, 1, 3, 5, 6);
        slot(&ring, 3, 1, 30, 40);
        let (mut found, mut damaged) = (Vec::new(), 0);
        assert!(!ring.take(&mut found, &mut damaged).unwrap());
        let kinds: Vec<Kind> = found.iter().map(|one| one.kind).collect();
        assert_eq!((kinds, damaged), (vec![Kind::Kernel, Kind::Launch], 0));
        assert_eq!(ring.control().unwrap().tail, 2);
        slot(&ring, 2, 2, 21, 22);
        ring.take(&mut found, &mut damaged).unwrap();
        assert_eq!((found.len(), found[3].start_ns), (4, 30));
    }

    #[test]
    fn goes_on_at_the_beginning_when_the_last_slot_was_taken() {
        let mut ring = ring();
        ring.tail = SLOTS as u64 - 1;
        slot(&ring, SLOTS as u64 - 1, 1, 1, 2);
        slot(&ring, SLOTS as u64, 1, 3, 4);
        let (mut found, mut damaged) = (Vec::new(), 0);
        while ring.take(&mut found, &mut damaged).unwrap() {}
        assert_eq!(found.iter().map(|one| one.start_ns).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn slots_without_sense_are_counted() {
        let mut ring = ring();
        slot(&ring, 0, 9, 10, 20);
        slot(&ring, 1, 1, 20, 10);
        slot(&ring, 2, 1, 0, 0);
        let (mut found, mut damaged) = (Vec::new(), 0);
        ring.take(&mut found, &mut damaged).unwrap();
        assert_eq!((found.len(), damaged), (0, 3));
    }

    #[test]
    fn a_file_that_was_shrunk_is_an_error() {
        let mut ring = ring();
        ring.file.set_len(100).unwrap();
        assert!(ring.control().is_err());
        assert!(ring.take(&mut Vec::new(), &mut 0).is_err());
        assert!(ring.take_names().is_err());
    }

    #[test]
    fn a_name_longer_than_what_was_written_is_not_read() {
        let mut ring = ring();
        let head = |at: usize, len: u32, complete: u32| {
            ring.put(CONTROL + at, &7_u64.to_ne_bytes()).unwrap();
            ring.put(CONTROL + at + 8, &len.to_ne_bytes()).unwrap();
            ring.put(CONTROL + at + 12, &complete.to_ne_bytes()).unwrap();
        };
        head(0, 4, 1);
        ring.put(CONTROL + 16, b"ncclXXXX").unwrap();
        head(24, u32::MAX, 1);
        ring.put(offset_of!(Control, names), &u64::MAX.to_ne_bytes()).unwrap();
        assert_eq!(ring.take_names().unwrap(), [(7, "nccl".to_owned())]);
        assert_eq!(ring.take_names().unwrap(), []);
    }
}
