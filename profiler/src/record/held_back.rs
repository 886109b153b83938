//! Signals that must not end the recorder before it can leave a trace, or while it writes one.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};

/// Keeps SIGINT and SIGTERM waiting on this thread, from the first line of `main` until the window is open: nothing
/// hears them yet, and the kernel's verifier gives up when one is pending, so that the load fails as if the program
/// were wrong.
#[derive(Debug)]
pub struct HeldBack(Option<SigSet>);

impl HeldBack {
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> HeldBack {
        let both = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        HeldBack(both.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok())
    }

    /// What was blocked before, which is what a command gets that is started meanwhile.
    pub fn before(&self) -> Option<SigSet> {
        self.0
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|before| before.thread_set_mask()) {
            log::warn!("signals stay blocked: {error}");
        }
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// A file that may not grow any more (`ulimit -f`) is an error of writing, as a full disk is, not the end of the
/// process. By a handler: other than a signal that is ignored, it does not go over to a command that is started.
pub fn survive_file_limit() {
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    let Ok(before) = (unsafe { sigaction(Signal::SIGXFSZ, &action) }) else { return };
    if matches!(before.handler(), SigHandler::SigIgn) {
        // As whoever started us wants it, for a command too.
        // SAFETY: what stood there before.
        let _ = unsafe { sigaction(Signal::SIGXFSZ, &before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_wait_until_the_programs_are_loaded() {
        let blocked = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM);
        let held_back = HeldBack::new();
        assert!(blocked());
        assert!(!held_back.before().unwrap().contains(Signal::SIGTERM));
        drop(held_back);
        assert!(!blocked());
    }

    #[test]
    fn a_file_that_may_not_grow_is_an_error_of_writing() {
        survive_file_limit();
        nix::sys::signal::raise(Signal::SIGXFSZ).unwrap();
    }
}
