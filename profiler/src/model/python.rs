//! Puts Python functions in the place of the interpreter's frames.
//!
//! CPython runs Python functions in one C function. Up to 3.10 each of them has a frame of its own; later one C frame
//! runs a function and everything that it calls in Python. The recorder says with which functions the interpreter was
//! entered from C, so the functions fall into groups, one for each C frame, and they match one by one where there are
//! as many. Where there are not (interpreters without symbols whose cold parts have no name), all functions stand in one
//! block, with a mark that says so.

use std::collections::{HashMap, HashSet};

use super::gil::waits_for_gil;
use crate::trace::record::{Frame, PythonFrame, PythonStack, Space, Stack};

/// Module of the frames of Python functions.
pub const MODULE: &str = "[python]";
/// Stands between native frames and a block of functions whose places among them are not known.
pub const UNMATCHED: &str = "[python, not matched with native frames]";

/// The function that runs Python code.
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";
/// Functions of the interpreter that only lead from one function to the next.
const GLUE: [&str; 38] = [
    "_PyEval_",
    "PyEval_Eval",
    "_TAIL_CALL_",
    "PyObject_Vectorcall",
    "_PyObject_Vectorcall",
    "PyObject_Call",
    "_PyObject_Call",
    "_PyObject_MakeTpCall",
    "_PyObject_FastCall",
    "PyVectorcall_",
    "_PyVectorcall_",
    "_PyFunction_",
    "function_code_fastcall",
    "PyCFunction_",
    "_PyCFunction_",
    "cfunction_",
    "method_vectorcall",
    "_PyMethodDef_",
    "_PyMethodDescr_",
    "method_call",
    "classmethoddescr_call",
    "vectorcall_",
    "call_function",
    "trace_call_function",
    "do_call_core",
    "object_vacall",
    "slot_tp_",
    "wrap_call",
    "wrapper_call",
    "gen_send_ex",
    "gen_iternext",
    "gen_send",
    "gen_next",
    "_PyGen_",
    "PyIter_Send",
    "PyGen_",
    "type_call",
    "call_attribute",
];

/// Stacks that are merged, each of which takes the room of a native one; more have their functions alone, and are cut.
const MAX_STACKS: usize = 1 << 16;
/// Native frames of one stack that are looked at.
const MAX_NATIVE: usize = 1024;

/// Which stacks have Python functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonStacks {
    /// With functions.
    pub with: HashSet<u64>,
    /// Those of them whose functions stand in one block.
    pub unmatched: HashSet<u64>,
    /// With frames of the interpreter and without functions.
    pub without: HashSet<u64>,
    /// Those that wait for the interpreter's lock.
    pub gil: HashSet<u64>,
}

/// Merges all of `python` into `stacks`.
pub(super) fn merge_all(stacks: &mut HashMap<u64, Stack>, python: &[PythonStack]) -> PythonStacks {
    let mut told = PythonStacks {
        gil: stacks.values().filter(|stack| waits_for_gil(stack)).map(|stack| stack.id).collect(),
        without: stacks.values().filter(|stack| runs_python(stack)).map(|stack| stack.id).collect(),
        ..PythonStacks::default()
    };
    let mut merged = Vec::new();
    for (index, one) in python.iter().filter(|one| !stacks.contains_key(&one.id)).enumerate() {
        let native = stacks.get(&one.native).filter(|_| index < MAX_STACKS);
        let (stack, matched) = merge(one, native);
        told.with.insert(one.id);
        if told.gil.contains(&one.native) {
            told.gil.insert(one.id);
        }
        if !matched {
            told.unmatched.insert(one.id);
        }
        merged.push(stack);
    }
    stacks.extend(merged.into_iter().map(|stack| (stack.id, stack)));
    told
}

/// Whether the native stack leads through the interpreter.
pub fn runs_python(stack: &Stack) -> bool {
    stack.space == Space::User && stack.frames.iter().any(is_evaluator)
}

fn is_evaluator(frame: &Frame) -> bool {
    frame.function == EVALUATOR
}

/// What a Python function is called in a stack: `step (train.py:42)`.
fn python_frame(frame: &PythonFrame) -> Frame {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    let function = match frame.line {
        0 => format!("{} ({file})", frame.function),
        line => format!("{} ({file}:{line})", frame.function),
    };
    Frame { function, module: MODULE.to_owned(), offset: 0 }
}

/// The native stack with the functions in it, and whether each has its place.
fn merge(python: &PythonStack, native: Option<&Stack>) -> (Stack, bool) {
    let frames = native.map_or(&[][..], |stack| &stack.frames);
    let cut = frames.len() > MAX_NATIVE;
    let frames = frames.get(..MAX_NATIVE).unwrap_or(frames);
    let native_cut = cut || native.is_none_or(|stack| stack.truncated);
    let parts = Parts::of(frames);
    let groups: Vec<&[PythonFrame]> = python.frames.split_inclusive(|frame| frame.entry).collect();
    let matched = parts.match_groups(&groups, python.truncated, native_cut);
    let truncated = native_cut || python.truncated;
    let (frames, matched) = match matched {
        Some(frames) => (frames, true),
        None => (parts.in_one_block(&python.frames), false),
    };
    (Stack { id: python.id, space: Space::User, frames, truncated }, matched)
}

/// A native stack, innermost frame first, cut at the interpreter's frames.
struct Parts<'a> {
    /// What each run of the interpreter called, innermost first; behind the last one what called it.
    between: Vec<&'a [Frame]>,
    /// File of the interpreter.
    module: &'a str,
}

impl<'a> Parts<'a> {
    fn of(frames: &'a [Frame]) -> Parts<'a> {
        let module =
            frames.iter().find(|frame| is_evaluator(frame)).map_or("", |frame| frame.module.as_str());
        Parts { between: frames.split(is_evaluator).collect(), module }
    }

    fn evaluators(&self) -> usize {
        self.between.len().saturating_sub(1)
    }

    fn is_glue(&self, frame: &Frame) -> bool {
        frame.module == self.module && GLUE.iter().any(|name| frame.function.starts_with(name))
    }

    /// A frame that may be the interpreter's, by its file alone.
    fn is_nameless(&self, frame: &Frame) -> bool {
        frame.module == self.module && frame.function.is_empty()
    }

    /// Native frames of a part that stay. Between two runs of the interpreter its own nameless frames go too.
    fn kept(&self, index: usize) -> impl Iterator<Item = Frame> + '_ {
        let inside = index > 0 && index < self.evaluators();
        let part = self.between.get(index).copied().unwrap_or_default();
        let goes = move |frame: &&Frame| self.is_glue(frame) || (inside && self.is_nameless(frame));
        part.iter().filter(move |frame| !goes(frame)).cloned()
    }

    /// `None` where it cannot be told which functions belong to which frame.
    fn match_groups(
        &self,
        groups: &[&[PythonFrame]],
        python_cut: bool,
        native_cut: bool,
    ) -> Option<Vec<Frame>> {
        let evaluators = self.evaluators();
        let nameless = || self.between.iter().copied().flatten().any(|frame| self.is_nameless(frame));
        let fits = match (python_cut, native_cut) {
            (false, false) => groups.len() == evaluators,
            // Whatever was cut off is further out, so they match from the inner end on.
            (true, false) => evaluators >= groups.len() && evaluators > 0,
            (false, true) => {
                evaluators <= groups.len() && evaluators > 0 && (evaluators == groups.len() || !nameless())
            }
            (true, true) => evaluators > 0 && !nameless(),
        };
        if !fits && self.between.iter().any(|part| !part.is_empty()) {
            return None;
        }
        let mut frames = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            frames.extend(self.kept(index));
            frames.extend(group.iter().map(python_frame));
        }
        if groups.len() == evaluators && !python_cut {
            frames.extend(self.kept(evaluators));
        }
        Some(frames)
    }

    /// All functions together inside of what called the interpreter first; what it called comes after them.
    fn in_one_block(&self, python: &[PythonFrame]) -> Vec<Frame> {
        let evaluators = self.evaluators();
        let inner = if evaluators == 0 { 0..1 } else { 0..evaluators };
        let mut frames: Vec<Frame> = inner.flat_map(|index| self.kept(index)).collect();
        frames.extend(python.iter().map(python_frame));
        frames.push(Frame { function: UNMATCHED.to_owned(), module: MODULE.to_owned(), offset: 0 });
        if evaluators > 0 {
            frames.extend(self.kept(evaluators));
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERPRETER: &str = "libpython3.11.so.1.0";

    fn native(names: &[&str]) -> Stack {
        let frame = |name: &&str| {
            let (function, module) = name.split_once('@').unwrap_or((name, INTERPRETER));
            Frame { function: function.into(), module: module.into(), offset: 7 }
        };
        Stack { id: 1, space: Space::User, frames: names.iter().map(frame).collect(), truncated: false }
    }

    fn python(names: &[&str]) -> PythonStack {
        let frame = |name: &&str| PythonFrame {
            function: name.trim_end_matches('!').into(),
            file: "/app/train.py".into(),
            line: 4,
            entry: name.ends_with('!'),
        };
        PythonStack { id: 9, native: 1, frames: names.iter().map(frame).collect(), truncated: false }
    }

    fn merged(python: &PythonStack, native: &Stack) -> Vec<String> {
        let (stack, _) = merge(python, Some(native));
        stack.frames.into_iter().map(|frame| frame.function).collect()
    }

    const NATIVE: [&str; 9] = [
        "recv@libc.so.6",
        "sock_recv@_socket.so",
        "cfunction_vectorcall_O",
        EVALUATOR,
        "_PyFunction_Vectorcall",
        "callback@ext.so",
        "PyObject_Vectorcall",
        EVALUATOR,
        "Py_RunMain",
    ];

    #[test]
    fn functions_stand_where_the_interpreter_ran_them() {
        let frames = merged(&python(&["inner", "middle!", "outer!"]), &native(&NATIVE));
        assert_eq!(
            frames,
            [
                "recv",
                "sock_recv",
                "inner (train.py:4)",
                "middle (train.py:4)",
                "callback",
                "outer (train.py:4)",
                "Py_RunMain"
            ]
        );
    }

    #[test]
    fn functions_that_do_not_match_stand_in_one_block_that_says_so() {
        let three = python(&["inner!", "middle!", "outer!"]);
        let wanted = [
            "recv",
            "sock_recv",
            "callback",
            "inner (train.py:4)",
            "middle (train.py:4)",
            "outer (train.py:4)",
            UNMATCHED,
            "Py_RunMain",
        ];
        assert_eq!(merged(&three, &native(&NATIVE)), wanted);
        let without = merged(&python(&["f!"]), &native(&["recv@libc.so.6", ""]));
        assert_eq!(without, ["recv", "", "f (train.py:4)", UNMATCHED]);
    }

    #[test]
    fn what_is_cut_off_is_further_out() {
        let mut short = native(&NATIVE[..5]);
        short.truncated = true;
        let frames = merged(&python(&["inner!", "outer!"]), &short);
        assert_eq!(frames, ["recv", "sock_recv", "inner (train.py:4)", "outer (train.py:4)"]);
        // A nameless frame of the interpreter may be a run of it.
        let mut nameless = native(&["recv@libc.so.6", "", EVALUATOR]);
        nameless.truncated = true;
        assert!(merged(&python(&["inner!", "outer!"]), &nameless).contains(&UNMATCHED.to_owned()));

        let mut cut = python(&["inner!"]);
        cut.truncated = true;
        let (stack, matched) = merge(&cut, Some(&native(&NATIVE)));
        assert!(matched && stack.truncated);
        assert_eq!(stack.frames.last().unwrap().function, "inner (train.py:4)");
    }

    #[test]
    fn a_wait_without_a_native_stack_has_its_functions() {
        let mut stacks = HashMap::new();
        let told = merge_all(&mut stacks, &[python(&["inner!", "outer!"])]);
        assert_eq!(stacks[&9].frames.len(), 2);
        assert!(stacks[&9].truncated && told.with.contains(&9) && told.unmatched.is_empty());
    }

    #[test]
    fn stacks_beyond_the_limit_have_their_functions_alone() {
        let mut stacks = HashMap::from([(1, native(&["recv@libc.so.6", EVALUATOR]))]);
        let many: Vec<_> =
            (2..MAX_STACKS as u64 + 3).map(|id| PythonStack { id, ..python(&["f!"]) }).collect();
        let told = merge_all(&mut stacks, &many);
        assert_eq!(told.with.len(), MAX_STACKS + 1);
        let [merged, alone] = [2, MAX_STACKS as u64 + 2].map(|id| &stacks[&id]);
        assert_eq!((merged.frames.len(), merged.truncated), (2, false));
        assert_eq!((alone.frames.len(), alone.truncated), (1, true));
    }

    #[test]
    fn stacks_of_the_interpreter_without_functions_are_known() {
        let mut stacks =
            HashMap::from([(1, native(&NATIVE)), (2, Stack { id: 2, ..native(&["recv@libc.so.6"]) })]);
        let told = merge_all(&mut stacks, &[python(&["f!", "g!"]), python(&["again!"])]);
        assert_eq!((told.without, stacks.len()), (HashSet::from([1]), 3));
    }

    #[test]
    fn a_name_that_is_wanted_by_two_stacks_stays_the_native_one_s() {
        let mut stacks = HashMap::from([(9, Stack { id: 9, ..native(&["main"]) })]);
        let told = merge_all(&mut stacks, &[python(&["f!"])]);
        assert_eq!((stacks[&9].frames[0].function.as_str(), told.with.len()), ("main", 0));
    }
}
