//! The stack view's frames below process and thread.

use super::{FrameKind, Site, ViewFrame, place};
use crate::analysis::Analysis;
use crate::trace::record::{Frame, Stack};

/// Most frames that are shown of one stack; the outermost ones are left out above that.
const DEEPEST: usize = 256;

/// Whether this is the name of a call at all.
pub(super) fn is_call(name: &str) -> bool {
    !name.is_empty() && name != "none"
}

pub(super) fn push_frames(frames: &mut Vec<ViewFrame>, analysis: &Analysis, site: &Site<'_>, kernel: bool) {
    push_calls(frames, analysis, site, kernel);
    frames.push(leaf(analysis, site));
}

/// Functions and system call.
pub(super) fn push_calls(frames: &mut Vec<ViewFrame>, analysis: &Analysis, site: &Site<'_>, kernel: bool) {
    push_user(frames, analysis.stacks.get(&site.user_stack), site);
    if kernel {
        push_kernel(frames, analysis.stacks.get(&site.kernel_stack));
    }
}

/// What was waited for.
pub(super) fn leaf(analysis: &Analysis, site: &Site<'_>) -> ViewFrame {
    let mut leaf = format!("[{}]", site.cause);
    let place = place::of_leaf(analysis, site);
    for part in [site.peer, &place, site.detail] {
        if !part.is_empty() {
            leaf.push(' ');
            leaf.push_str(part);
        }
    }
    // Behind the length limit of names, so that it is never cut off.
    let mut leaf = ViewFrame::new(&leaf, FrameKind::Cause(site.cause));
    if site.in_flight {
        leaf.name.push_str(" (in flight)");
        leaf.kind = FrameKind::InFlight(site.cause);
    }
    leaf
}

/// User frames, outermost first, the resolver function where the stack lacks it, and the system call.
fn push_user(frames: &mut Vec<ViewFrame>, stack: Option<&Stack>, site: &Site<'_>) {
    match stack {
        None => frames.push(ViewFrame::new("[no stack]", FrameKind::Mark)),
        Some(stack) if stack.truncated || stack.frames.len() > DEEPEST => {
            frames.push(ViewFrame::new("[truncated]", FrameKind::Mark));
        }
        Some(_) => {}
    }
    let known = stack.map_or(&[][..], |stack| &stack.frames);
    let known = known.get(..DEEPEST).unwrap_or(known);
    let lacks_api = is_call(site.api) && !known.iter().any(|frame| is_same(&frame.function, site.api));
    let has_call = known.first().is_some_and(|frame| is_same(&frame.function, site.call));
    // What libc does at the inner end of the stack it does inside of the resolver function.
    let inner = known.iter().take_while(|frame| is_libc(&frame.module)).count().max(usize::from(has_call));
    let (inside, outside) = known.split_at(inner.min(known.len()));

    // One name for a function whatever libc calls it inside, so that recordings of two machines compare.
    let user = |frame: &Frame| match [site.api, site.call].iter().find(|call| is_same(&frame.function, call))
    {
        Some(call) => ViewFrame::new(call, FrameKind::Call),
        None => ViewFrame::new(&frame_name(frame), FrameKind::User),
    };
    frames.extend(outside.iter().rev().map(user));
    if lacks_api {
        frames.push(ViewFrame::new(site.api, FrameKind::Call));
    }
    frames.extend(inside.iter().rev().map(user));
    if is_call(site.call) && !has_call {
        frames.push(ViewFrame::new(site.call, FrameKind::Call));
    }
}

fn push_kernel(frames: &mut Vec<ViewFrame>, stack: Option<&Stack>) {
    let known = stack.map_or(&[][..], |stack| &stack.frames);
    for frame in known.iter().take(DEEPEST).rev() {
        let mut frame = ViewFrame::new(&frame_name(frame), FrameKind::Kernel);
        frame.name.push_str("_[k]");
        frames.push(frame);
    }
}

/// The function's name, or where in which file it is.
fn frame_name(frame: &Frame) -> String {
    match (frame.function.trim().is_empty(), frame.module.trim().is_empty()) {
        (false, _) => frame.function.clone(),
        (true, false) => format!("{}+{:#x}", frame.module.trim(), frame.offset),
        (true, true) => "[unknown]".to_owned(),
    }
}

/// Whether a symbol is this function under one of libc's inner names: `__libc_connect`, `__GI___poll`,
/// `__connect_nocancel`, `getaddrinfo@@GLIBC_2.2.5`.
fn is_same(symbol: &str, function: &str) -> bool {
    if !is_call(function) {
        return false;
    }
    let bare = symbol.split('@').next().unwrap_or_default();
    let bare = bare.strip_prefix("__GI_").unwrap_or(bare).trim_start_matches('_');
    let bare = bare.strip_prefix("libc_").unwrap_or(bare);
    let bare = bare.strip_suffix("_nocancel").unwrap_or(bare);
    bare == function
}

/// Whether a module is part of the C library, its resolver or its name services.
fn is_libc(module: &str) -> bool {
    ["libc.", "libc-", "libresolv", "libnss_", "ld-musl", "libpthread", "ld-linux"]
        .iter()
        .any(|prefix| module.starts_with(prefix))
}
