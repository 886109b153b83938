//! Where the members of the interpreter's structures lie, by version. Byte offsets, 64-bit machines.

use super::memory::{Memory, Struct};

/// What leads from a thread state to its innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    /// A member of the thread state.
    Direct(u16),
    /// A member of the thread state points at a structure on the C stack, of which a member does (3.11, 3.12).
    ByCFrame { cframe: u16, current: u16 },
}

/// How a frame tells where it is in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// Index of the last instruction, in units of so many bytes.
    Index { offset: u16, unit: u8 },
    /// Address of an instruction.
    Address(u16),
}

/// How a frame tells whether C code entered the interpreter with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Every function has a C frame of its own.
    Always,
    /// A flag (3.11).
    Flag(u16),
    /// A frame without a function, whose owner has this number or a higher one, stands between it and its caller.
    Owner { offset: u16, shim: u8 },
}

/// The encoding of a code object's line numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    Lnotab,
    /// PEP 626, 3.10 only.
    Ranges,
    /// 3.11 and newer.
    Locations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameLayout {
    pub code: u16,
    pub previous: u16,
    pub position: Position,
    pub entry: Entry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeLayout {
    pub first_line: u16,
    pub file: u16,
    /// The qualified name where there is one (3.11).
    pub name: u16,
    pub lines: u16,
    pub encoding: Lines,
    /// First instruction; only where frames have addresses.
    pub start: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextLayout {
    pub length: u16,
    pub state: u16,
    /// Where the characters of ASCII strings begin; others have two more words before them.
    pub data: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// `(3, minor)`.
    pub version: (u8, u8),
    /// Member of `_PyRuntime`.
    pub interpreters: u16,
    pub interpreter_next: u16,
    pub interpreter_threads: u16,
    pub thread_next: u16,
    pub thread_interpreter: u16,
    /// What `pthread_self` returns.
    pub thread_pthread: u16,
    /// What `gettid` returns, from 3.11 on.
    pub thread_native: Option<u16>,
    pub top: Top,
    pub frame: FrameLayout,
    pub code: CodeLayout,
    pub text: TextLayout,
    pub bytes_size: u16,
    pub bytes_data: u16,
    pub object_type: u16,
}

const OLD_TEXT: TextLayout = TextLayout { length: 16, state: 32, data: 48 };
const NEW_TEXT: TextLayout = TextLayout { length: 16, state: 32, data: 40 };

const V3_8: Layout = Layout {
    version: (3, 8),
    interpreters: 32,
    interpreter_next: 0,
    interpreter_threads: 8,
    thread_next: 8,
    thread_interpreter: 16,
    thread_pthread: 176,
    thread_native: None,
    top: Top::Direct(24),
    frame: FrameLayout {
        code: 32,
        previous: 24,
        position: Position::Index { offset: 104, unit: 1 },
        entry: Entry::Always,
    },
    code: CodeLayout { first_line: 40, file: 104, name: 112, lines: 120, encoding: Lines::Lnotab, start: 0 },
    text: OLD_TEXT,
    bytes_size: 16,
    bytes_data: 32,
    object_type: 8,
};

const V3_9: Layout = Layout { version: (3, 9), ..V3_8 };

const V3_10: Layout = Layout {
    version: (3, 10),
    frame: FrameLayout { position: Position::Index { offset: 96, unit: 2 }, ..V3_8.frame },
    code: CodeLayout { encoding: Lines::Ranges, ..V3_8.code },
    ..V3_8
};

const V3_11: Layout = Layout {
    version: (3, 11),
    interpreters: 40,
    interpreter_threads: 16,
    thread_pthread: 152,
    thread_native: Some(160),
    top: Top::ByCFrame { cframe: 56, current: 8 },
    frame: FrameLayout { code: 32, previous: 48, position: Position::Address(56), entry: Entry::Flag(68) },
    code: CodeLayout {
        first_line: 72,
        file: 112,
        name: 128,
        lines: 136,
        encoding: Lines::Locations,
        start: 184,
    },
    ..V3_8
};

const V3_12: Layout = Layout {
    version: (3, 12),
    interpreter_threads: 72,
    thread_pthread: 136,
    thread_native: Some(144),
    top: Top::ByCFrame { cframe: 56, current: 0 },
    frame: FrameLayout {
        code: 0,
        previous: 8,
        position: Position::Address(56),
        entry: Entry::Owner { offset: 70, shim: 3 },
    },
    code: CodeLayout { first_line: 68, start: 192, ..V3_11.code },
    text: NEW_TEXT,
    ..V3_11
};

/// The layout of a version that does not say itself where everything lies.
pub(super) fn fixed(minor: u8) -> Option<Layout> {
    [V3_8, V3_9, V3_10, V3_11, V3_12].into_iter().find(|layout| layout.version.1 == minor)
}

/// First bytes of `_PyRuntime` from 3.13 on.
const COOKIE: &[u8; 8] = b"xdebugpy";
/// Bytes of the table that are read: more than any known one has up to the last member used.
const PUBLISHED: usize = 81 * 8;
/// No structure of the interpreter has members as far in; the runtime and interpreter states are the largest.
const FARTHEST: u64 = 60_000;

/// Word numbers in the table of offsets, which differ by version.
struct Table {
    thread: usize,
    frame: usize,
    code: usize,
    object_type: usize,
    bytes: usize,
    text: usize,
}

const TABLE_3_13: Table = Table { thread: 19, frame: 28, code: 34, object_type: 45, bytes: 64, text: 67 };
const TABLE_3_14: Table = Table { thread: 22, frame: 31, code: 39, object_type: 51, bytes: 74, text: 77 };

/// The layout that the runtime at this address publishes; `None` where it publishes none that is known.
pub(super) fn published(memory: &mut impl Memory, runtime: u64) -> Option<Layout> {
    let table = Struct::read(memory, runtime, PUBLISHED)?;
    let word = |index: usize| table.u64(u16::try_from(index * 8).ok()?);
    if word(0)? != u64::from_le_bytes(*COOKIE) {
        return None;
    }
    let version = word(1)?;
    // Releases only: while a version is made its table changes.
    let words = match (version >> 16, (version >> 4) & 0xf) {
        (0x030d, 0xf) => TABLE_3_13,
        // Without the global lock 3.14 runs copies of the code, which instructions cannot be told by.
        (0x030e, 0xf) if word(2)? == 0 => TABLE_3_14,
        _ => return None,
    };
    let offset = |index: usize| u16::try_from(word(index)?).ok().filter(|at| u64::from(*at) < FARTHEST);
    let (thread, frame, code) = (words.thread, words.frame, words.code);
    Some(Layout {
        version: (3, ((version >> 16) & 0xff) as u8),
        interpreters: offset(5)?,
        interpreter_next: offset(8)?,
        interpreter_threads: offset(9)?,
        thread_next: offset(thread + 2)?,
        thread_interpreter: offset(thread + 3)?,
        top: Top::Direct(offset(thread + 4)?),
        thread_pthread: offset(thread + 5)?,
        thread_native: Some(offset(thread + 6)?),
        frame: FrameLayout {
            previous: offset(frame + 1)?,
            code: offset(frame + 2)?,
            position: Position::Address(offset(frame + 3)?),
            entry: Entry::Owner { offset: offset(frame + 5)?, shim: 3 },
        },
        code: CodeLayout {
            file: offset(code + 1)?,
            name: offset(code + 3)?,
            lines: offset(code + 4)?,
            first_line: offset(code + 5)?,
            start: offset(code + 9)?,
            encoding: Lines::Locations,
        },
        object_type: offset(words.object_type)?,
        bytes_size: offset(words.bytes + 1)?,
        bytes_data: offset(words.bytes + 2)?,
        text: TextLayout {
            state: offset(words.text + 1)?,
            length: offset(words.text + 2)?,
            data: offset(words.text + 3)?,
        },
    })
}
