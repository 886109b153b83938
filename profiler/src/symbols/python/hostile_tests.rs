//! Memory that no interpreter has: no panic, and an end.

use std::collections::HashSet;

use super::fake::Fake;
use super::frames::{self, Broken, Interpreter};
use super::layout::{self, Layout};
use super::memory::Memory;
use super::threads;
use crate::symbols::live_tests::random;

const THREAD: u64 = 0x10_0000;
const RUNTIME: u64 = 0x20_0000;
const TYPE: u64 = 0x30_0000;

/// Memory that has something everywhere, most of it pointers into itself.
struct Noise<R> {
    next: R,
    reads: usize,
}

impl<R: FnMut() -> u64> Memory for Noise<R> {
    fn fill(&mut self, _: u64, buffer: &mut [u8]) -> bool {
        self.reads += 1;
        for chunk in buffer.chunks_mut(8) {
            let number = (self.next)();
            let value = if number.is_multiple_of(3) { number % 64 } else { (number >> 20) & !7 };
            let bytes = value.to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        true
    }
}

fn layouts() -> Vec<Layout> {
    (8..=12).map(|minor| layout::fixed(minor).unwrap()).collect()
}

#[test]
fn noise_is_read_to_an_end() {
    for layout in layouts() {
        for seed in 1..300 {
            let mut noise = Noise { next: random(seed * 0x9e37_79b9), reads: 0 };
            assert_eq!(layout::published(&mut noise, RUNTIME), None);
            let states = threads::list(&mut noise, &layout, RUNTIME);
            threads::by_tid(&mut noise, &states, &HashSet::from([1, 2, 3]));
            let interpreter = Interpreter { layout: &layout, code_type: 0 };
            let _ = frames::read(&mut noise, interpreter, THREAD);
            assert!(noise.reads < 20_000, "{} reads", noise.reads);
        }
    }
}

/// A process with threads and frames of CPython 3.12.
struct Process {
    memory: Fake,
    next: u64,
}

impl Process {
    fn new() -> Process {
        let mut process = Process { memory: Fake::default(), next: 0x50_0000 };
        process.memory.put(THREAD, &[0; 256]);
        process
    }

    fn layout() -> Layout {
        layout::fixed(12).unwrap()
    }

    fn place(&mut self, size: usize) -> u64 {
        let at = self.next;
        self.next += (size as u64 + 64) & !15;
        self.memory.put(at, &vec![0; size]);
        at
    }

    fn text(&mut self, text: &str) -> u64 {
        let at = self.place(48 + text.len());
        self.memory.word(at + 16, text.len() as u64);
        self.memory.word(at + 32, 0x64);
        self.memory.put(at + 40, text.as_bytes());
        at
    }

    /// A function whose instruction is in its line 7.
    fn code(&mut self, name: &str) -> u64 {
        let (name, file) = (self.text(name), self.text("/app/x.py"));
        let table = self.place(40);
        self.memory.word(table + 16, 3);
        self.memory.put(table + 32, &[0x80 | 11 << 3 | 7, 0, 0]);
        let at = self.place(256);
        self.memory.word(at + 8, TYPE);
        self.memory.put(at + 68, &6i32.to_le_bytes());
        for (offset, value) in [(112, file), (120, name), (128, name), (136, table)] {
            self.memory.word(at + offset, value);
        }
        at
    }

    fn frame(&mut self, code: u64, previous: u64, owner: u8) -> u64 {
        let at = self.place(80);
        self.memory.word(at, code);
        self.memory.word(at + 8, previous);
        self.memory.word(at + 56, code + 192 + 2);
        self.memory.put(at + 70, &[owner]);
        at
    }

    fn run(&mut self, innermost: u64) {
        let cframe = self.place(16);
        self.memory.word(cframe, innermost);
        self.memory.word(THREAD + 56, cframe);
    }

    fn read(&mut self) -> Result<Vec<(String, u32, bool)>, Broken> {
        let layout = Process::layout();
        let look = frames::read(&mut self.memory, Interpreter { layout: &layout, code_type: TYPE }, THREAD)?;
        Ok(look.frames.into_iter().map(|frame| (frame.function, frame.line, frame.entry)).collect())
    }
}

#[test]
fn runs_of_the_interpreter_end_at_its_own_frames() {
    let mut process = Process::new();
    let code = ["f", "g", "h"].map(|name| process.code(name));
    let bottom = process.frame(0, 0, 3);
    let outer = process.frame(code[2], bottom, 0);
    let shim = process.frame(0, outer, 3);
    let middle = process.frame(code[1], shim, 1);
    let inner = process.frame(code[0], middle, 0);
    process.run(inner);
    let wanted = [("f", false), ("g", true), ("h", true)].map(|(name, entry)| (name.to_owned(), 7, entry));
    assert_eq!(process.read().unwrap(), wanted);
}

#[test]
fn a_thread_without_functions_has_none() {
    let mut process = Process::new();
    assert_eq!(process.read(), Ok(vec![]));
    process.run(0);
    assert_eq!(process.read(), Ok(vec![]));
}

#[test]
fn frames_in_a_circle_are_no_stack() {
    let mut process = Process::new();
    let code = process.code("f");
    let outer = process.frame(code, 0, 0);
    let inner = process.frame(code, outer, 0);
    process.memory.word(outer + 8, inner);
    process.run(inner);
    assert_eq!(process.read(), Err(Broken));
    assert!(process.memory.reads < 50);
}

#[test]
fn what_is_no_code_object_ends_the_look() {
    let mut process = Process::new();
    let text = process.text("not code");
    let frame = process.frame(text, 0, 0);
    process.run(frame);
    assert_eq!(process.read(), Err(Broken));
    let unmapped = process.frame(0x7fff_0000, 0, 0);
    process.run(unmapped);
    assert_eq!(process.read(), Err(Broken));
}

#[test]
fn deep_recursion_is_cut_at_its_outer_end() {
    let mut process = Process::new();
    let code = process.code("f");
    let mut previous = 0;
    for _ in 0..2000 {
        previous = process.frame(code, previous, 0);
    }
    process.run(previous);
    let layout = Process::layout();
    let interpreter = Interpreter { layout: &layout, code_type: TYPE };
    let look = frames::read(&mut process.memory, interpreter, THREAD).unwrap();
    assert_eq!((look.frames.len(), look.truncated), (512, true));
}

#[test]
fn threads_in_a_circle_are_listed_once() {
    let mut memory = Fake::default();
    let layout = Process::layout();
    let interpreter = 0x40_0000;
    memory.put(RUNTIME, &[0; 64]);
    memory.word(RUNTIME + 40, interpreter);
    memory.put(interpreter, &[0; 128]);
    // Interpreters and threads lead back to themselves; one thread is of another interpreter.
    memory.word(interpreter, interpreter);
    memory.word(interpreter + 72, THREAD);
    for (state, next, native) in [(THREAD, THREAD + 512, 11), (THREAD + 512, THREAD, 12)] {
        memory.put(state, &[0; 256]);
        memory.word(state + 8, next);
        memory.word(state + 16, interpreter);
        memory.word(state + 144, native);
    }
    let states = threads::list(&mut memory, &layout, RUNTIME);
    assert_eq!(states.len(), 2);
    let found = threads::by_tid(&mut memory, &states, &HashSet::from([11, 13]));
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(11, vec![THREAD])]);
    memory.word(THREAD + 16, 1);
    assert_eq!(threads::list(&mut memory, &layout, RUNTIME), []);
}

#[test]
fn offsets_that_a_runtime_publishes_must_be_possible() {
    let mut memory = Fake::default();
    memory.put(RUNTIME, &[0; 81 * 8]);
    memory.put(RUNTIME, b"xdebugpy");
    memory.word(RUNTIME + 8, 0x030d_00f0);
    assert_eq!(layout::published(&mut memory, RUNTIME).unwrap().version, (3, 13));
    memory.word(RUNTIME + 5 * 8, 1 << 40);
    assert_eq!(layout::published(&mut memory, RUNTIME), None);
    memory.word(RUNTIME + 5 * 8, 632);
    memory.word(RUNTIME + 8, 0x030e_00f0);
    assert_eq!(layout::published(&mut memory, RUNTIME).unwrap().version, (3, 14));
    memory.word(RUNTIME + 16, 1);
    assert_eq!(layout::published(&mut memory, RUNTIME), None);
    memory.word(RUNTIME + 16, 0);
    // An alpha, and a version to come.
    for version in [0x030e_00a3, 0x0310_00f0] {
        memory.word(RUNTIME + 8, version);
        assert_eq!(layout::published(&mut memory, RUNTIME), None);
    }
}
