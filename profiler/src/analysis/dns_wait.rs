//! A stalled interval that was spent on the resolver, for the analysis of lookups.

use std::sync::Arc;

use profiler_common::{Api, Call};

use crate::model::Model;
use crate::model::socket::Transport;
use crate::model::wait::WaitSpan;
use crate::trace::record::Space;

/// The share of one interval that a thread waited for one resolver. The shares of a thread are exclusive:
/// their weights add up to the thread's `dns.resolve` time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsWait {
    /// The same for all shares of one wait (several servers in one poll set, or parts of it).
    pub wait: WaitId,
    pub pid: u32,
    pub tid: u32,
    /// Clipped to the window and to the thread's presence.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Nanoseconds of `[start_ns, end_ns)` that are this share's.
    pub weight_ns: u64,
    /// Start of the wait itself, not clipped: its age is `end_ns - began_ns`.
    pub began_ns: u64,
    /// `ip:port`, `[ip]:port`, the path of a unix socket, or empty where unknown (an unconnected socket).
    pub server: Arc<str>,
    pub transport: Transport,
    /// 0: unknown.
    pub socket_ino: u64,
    /// From the probe at its entry, or from the stack.
    pub api: Api,
    /// Start of the resolver call that the wait is inside of; 0: none or begun earlier.
    pub api_start_ns: u64,
    pub call: Call,
    /// Result of the call, or -errno; 0 in flight.
    pub ret: i64,
    /// The wait had not ended when the recording stopped. Set on the share that reaches its end.
    pub in_flight: bool,
    /// The wait began before the recording. Set on the share that begins with it.
    pub began_earlier: bool,
}

/// Names one wait of the model: index of the thread in `Model::threads`, index in its `waits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId {
    pub thread: u32,
    pub index: u32,
}

/// The resolver function that a wait is inside of. Without a probe's word (the call began before the recording, or
/// the library could not be probed) the stack of the wait has it: the outermost of those that stand there, since
/// `getnameinfo` calls `gethostbyaddr_r` and is what was asked.
pub(super) fn api_of(model: &Model, wait: &WaitSpan) -> Api {
    if wait.api != Api::None {
        return wait.api;
    }
    let stack = model.stacks.get(&wait.user_stack).filter(|stack| stack.space != Space::Kernel);
    let frames = stack.map_or(&[][..], |stack| &stack.frames);
    frames.iter().rev().find_map(|frame| named(&frame.function)).unwrap_or(Api::None)
}

/// The function under any of the names that libraries have for it: `__GI_getaddrinfo`, `__gethostbyname_r`,
/// `res_nsearch@@GLIBC_2.34`.
fn named(symbol: &str) -> Option<Api> {
    let bare = symbol.split('@').next().unwrap_or_default();
    let bare = bare.strip_prefix("__GI_").unwrap_or(bare).trim_start_matches('_');
    // Most frames are told apart by their first letter.
    if !bare.starts_with(['g', 'r']) {
        return None;
    }
    Api::ALL.into_iter().find(|api| api.symbol() == bare)
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;

    use super::*;
    use crate::model::fixture::{Trace, readable, udp, wait};
    use crate::trace::record::{Frame, Record, Stack, Wait};

    fn api(functions: &[&str], of: Wait) -> Api {
        let mut trace = Trace::new();
        let frames = functions.iter().map(|function| Frame {
            function: (*function).to_owned(),
            module: "libc.so.6".to_owned(),
            offset: 1,
        });
        let frames = frames.collect();
        trace.add(Record::Stack(Stack { id: 3, space: Space::User, frames, truncated: true }));
        trace.wait(Wait { user_stack: 3, ..of });
        let model = trace.model();
        let thread = &model.threads[0];
        let portions = thread.waits.portions(model.portion_len);
        let (portion, _) = model.portion(thread, &portions[0]);
        api_of(&model, &portion.waits[0])
    }

    #[test]
    fn the_function_of_a_call_from_before_is_on_the_stack() {
        let poll = || wait(Call::Poll, 1000, 1500, vec![readable(udp(5, "10.0.0.53:53"))]);
        assert_eq!(api(&["poll", "__res_context_send", "getaddrinfo", "main"], poll()), Api::Getaddrinfo);
        assert_eq!(api(&["poll", "__gethostbyname_r", "main"], poll()), Api::GethostbynameR);
        assert_eq!(api(&["poll", "res_nsearch@@GLIBC_2.34", "main"], poll()), Api::ResNsearch);
        assert_eq!(api(&["poll", "__GI___res_nquery", "main"], poll()), Api::ResNquery);
    }

    #[test]
    fn of_several_functions_the_outermost_was_asked() {
        let poll = || wait(Call::Poll, 1000, 1500, vec![readable(udp(5, "10.0.0.53:53"))]);
        let nested = ["poll", "__res_nquery", "__gethostbyaddr_r", "getnameinfo", "main"];
        assert_eq!(api(&nested, poll()), Api::Getnameinfo);
    }

    #[test]
    fn names_that_only_resemble_are_no_functions_of_the_resolver() {
        let poll = || wait(Call::Poll, 1000, 1500, vec![readable(udp(5, "10.0.0.53:53"))]);
        assert_eq!(api(&["poll", "my_getaddrinfo", "getaddrinfo_a", "", "__", "@", "r"], poll()), Api::None);
    }

    #[test]
    fn what_a_probe_says_counts_before_the_stack() {
        let poll = wait(Call::Poll, 1000, 1500, vec![readable(udp(5, "10.0.0.53:53"))]);
        let told = Wait { api: Api::ResSend, api_start_ns: 990, ..poll };
        assert_eq!(api(&["poll", "getaddrinfo"], told), Api::ResSend);
    }
}
