//! The frames of one thread.

use std::collections::HashSet;

use super::layout::{Entry, Layout, Position, Top};
use super::memory::{Memory, Struct, word};
use super::{lines, text};
use crate::trace::record::PythonFrame;

/// Functions of one stack at most; the outermost ones are left out above that.
const MAX_FRAMES: usize = 512;
/// Bytes of a table of lines that are looked at.
const MAX_LINES: u64 = 256 << 10;

/// Why a stack could not be read: what was found there is no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What one look saw, innermost function first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PythonLook {
    pub frames: Vec<PythonFrame>,
    /// Functions further out were left out.
    pub truncated: bool,
}

/// Interpreter that a stack is read of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interpreter<'a> {
    pub layout: &'a Layout,
    /// Address of the type of code objects; 0 where it is not known.
    pub code_type: u64,
}

/// Reads the frames of the thread state at `thread`. Empty where it runs no Python function.
pub(super) fn read(
    memory: &mut impl Memory,
    interpreter: Interpreter<'_>,
    thread: u64,
) -> Result<PythonLook, Broken> {
    let layout = interpreter.layout;
    let mut address = innermost(memory, layout, thread).ok_or(Broken)?;
    let mut look = PythonLook::default();
    let mut seen = HashSet::new();
    while address != 0 {
        if look.frames.len() >= MAX_FRAMES {
            look.truncated = true;
            return Ok(look);
        }
        // A list that bites its tail is no stack.
        if !seen.insert(address) || seen.len() > 2 * MAX_FRAMES {
            return Err(Broken);
        }
        let frame = Struct::read(memory, address, frame_size(layout)).ok_or(Broken)?;
        address = frame.u64(layout.frame.previous).ok_or(Broken)?;
        if is_shim(&frame, layout) {
            mark_entry(&mut look);
            continue;
        }
        look.frames.extend(read_function(memory, interpreter, &frame)?);
    }
    mark_entry(&mut look);
    Ok(look)
}

fn innermost(memory: &mut impl Memory, layout: &Layout, thread: u64) -> Option<u64> {
    match layout.top {
        Top::Direct(offset) => word(memory, thread.checked_add(offset.into())?),
        Top::ByCFrame { cframe, current } => {
            let cframe = word(memory, thread.checked_add(cframe.into())?)?;
            // Null while the thread state is made.
            if cframe == 0 { Some(0) } else { word(memory, cframe.checked_add(current.into())?) }
        }
    }
}

/// C code entered the interpreter with the outermost frame so far.
fn mark_entry(look: &mut PythonLook) {
    if let Some(frame) = look.frames.last_mut() {
        frame.entry = true;
    }
}

fn frame_size(layout: &Layout) -> usize {
    let frame = &layout.frame;
    let position = match frame.position {
        Position::Index { offset, .. } => offset + 4,
        Position::Address(offset) => offset + 8,
    };
    let entry = match frame.entry {
        Entry::Always => 0,
        Entry::Flag(offset) | Entry::Owner { offset, .. } => offset + 1,
    };
    usize::from(position.max(entry).max(frame.code + 8).max(frame.previous + 8))
}

/// Whether the frame stands for the entry from C and for no function.
fn is_shim(frame: &Struct, layout: &Layout) -> bool {
    match layout.frame.entry {
        Entry::Owner { offset, shim } => frame.u8(offset).is_none_or(|owner| owner >= shim),
        Entry::Always | Entry::Flag(_) => false,
    }
}

/// `None` for a frame that the interpreter put there for itself.
fn read_function(
    memory: &mut impl Memory,
    interpreter: Interpreter<'_>,
    frame: &Struct,
) -> Result<Option<PythonFrame>, Broken> {
    let layout = interpreter.layout;
    // From 3.14 on the lowest bits say how the reference is counted.
    let code_address = frame.u64(layout.frame.code).ok_or(Broken)? & !3;
    let offsets = &layout.code;
    let size = [offsets.file, offsets.name, offsets.lines, offsets.first_line, layout.object_type];
    let size = usize::from(size.into_iter().max().unwrap_or(0)) + 8;
    let code = Struct::read(memory, code_address, size).ok_or(Broken)?;
    if interpreter.code_type != 0 && code.u64(layout.object_type) != Some(interpreter.code_type) {
        return Err(Broken);
    }
    let mut string = |offset| text::read(memory, layout.text, code.u64(offset)?);
    let function = string(offsets.name).ok_or(Broken)?;
    let file = string(offsets.file).ok_or(Broken)?;
    // The code that cleans up behind a constructor has no file (3.12 and newer).
    if file == "__init__" {
        return Ok(None);
    }
    let line = position(frame, layout, code_address).and_then(|at| line_at(memory, layout, &code, at));
    let entry = match layout.frame.entry {
        Entry::Always => true,
        Entry::Flag(offset) => frame.u8(offset).is_some_and(|flag| flag != 0),
        Entry::Owner { .. } => false,
    };
    Ok(Some(PythonFrame { function, file, line: line.unwrap_or(0), entry }))
}

/// Offset of the instruction in its code, bytes. Before the first one it counts as the first.
fn position(frame: &Struct, layout: &Layout, code: u64) -> Option<u64> {
    Some(match layout.frame.position {
        Position::Index { offset, unit } => {
            u64::from(frame.i32(offset)?.max(0).cast_unsigned()) * u64::from(unit)
        }
        Position::Address(offset) => {
            let start = code.checked_add(layout.code.start.into())?;
            frame.u64(offset)?.saturating_sub(start)
        }
    })
}

fn line_at(memory: &mut impl Memory, layout: &Layout, code: &Struct, at: u64) -> Option<u32> {
    let first = code.i32(layout.code.first_line)?.max(0).cast_unsigned();
    let table = code.u64(layout.code.lines)?;
    let head = Struct::read(memory, table, usize::from(layout.bytes_data))?;
    let size = head.u64(layout.bytes_size)?;
    if size > MAX_LINES {
        return None;
    }
    let mut bytes = vec![0; size as usize];
    let filled = memory.fill(table.checked_add(layout.bytes_data.into())?, &mut bytes);
    filled.then(|| lines::line(layout.code.encoding, &bytes, first, at)).flatten()
}
