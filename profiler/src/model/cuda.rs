//! Which threads wait for a GPU, and in which function: by the CUDA runtime's own records, and by the stacks of waits.

use std::collections::HashMap;

use profiler_common::cuda::{SYNCS, sync_named};
use profiler_common::{Api, Call};

use super::Model;
use crate::trace::gpu_sync::GpuSync;
use crate::trace::record::{Frame, Sched, Space, Stack, Wait, WaitFlags};

/// Ids of the stacks that stand for calls that were recorded without one.
const STACKS: u64 = 0x6375_6461_0000_0000;
/// Stands where the functions that called it would.
const NO_STACK: &str = "[no stack]";

/// The recorded calls as waits without a system call, whose stack is the function alone. A call within another one, as
/// the driver's within the runtime's, is part of that.
pub(super) fn waits(model: &mut Model, ns_tids: &HashMap<(u32, u32), u32>) -> Vec<Wait> {
    let mut syncs = std::mem::take(&mut model.gpu.syncs);
    syncs.sort_unstable_by_key(|one| (one.pid, one.ns_tid, one.start_ns, std::cmp::Reverse(one.end_ns)));
    let mut outer: Option<GpuSync> = None;
    syncs.retain(|one| {
        let is_inner = outer.is_some_and(|outer| {
            (outer.pid, outer.ns_tid) == (one.pid, one.ns_tid) && one.end_ns <= outer.end_ns
        });
        if !is_inner {
            outer = Some(*one);
        }
        !is_inner && (one.function as usize) < SYNCS.len()
    });
    let mut waits = Vec::with_capacity(syncs.len());
    for one in syncs {
        // A thread that no other record speaks of, or ids that are those of the host.
        let tid = ns_tids.get(&(one.pid, one.ns_tid)).copied().unwrap_or(one.ns_tid);
        let id = STACKS + u64::from(one.function);
        model.stacks.entry(id).or_insert_with(|| stack_of(id, one.function));
        waits.push(wait(&one, tid, id));
    }
    waits
}

fn stack_of(id: u64, function: u16) -> Stack {
    let function = SYNCS.get(function as usize);
    let module = function.map_or("", |one| if one.is_driver { "libcuda.so.1" } else { "libcudart.so" });
    let frame = |function: &str, module: &str| Frame {
        function: function.to_owned(),
        module: module.to_owned(),
        offset: 0,
    };
    let frames = vec![frame(function.map_or("", |one| one.name), module), frame(NO_STACK, "")];
    Stack { id, space: Space::User, frames, truncated: false }
}

fn wait(sync: &GpuSync, tid: u32, user_stack: u64) -> Wait {
    Wait {
        start_ns: sync.start_ns,
        end_ns: sync.end_ns,
        pid: sync.pid,
        tid,
        call: Call::None,
        flags: WaitFlags::default(),
        fd: -1,
        set_size: 0,
        polls: 0,
        ret: 0,
        arg: 0,
        off_cpu_ns: 0,
        user_stack,
        kernel_stack: 0,
        api: Api::None,
        api_start_ns: 0,
        sockets: Vec::new(),
        sched: Sched::default(),
    }
}

/// Locks inside of the driver: who waits for one waits for another thread, whatever the GPU does.
const LOCKS: [&str; 4] = ["pthread_mutex_", "pthread_rwlock_", "pthread_spin_", "lll_lock_wait"];

/// What a stack says of waiting for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaStack {
    /// In this function of [`SYNCS`], the outermost one.
    Sync(&'static str),
    /// For a lock.
    Lock,
}

/// What the stack says; `None` where CUDA is not in it by the name of a function that waits. That a library of CUDA is in
/// it is not enough: its own threads wait for work there.
pub fn stack_says(stack: &Stack) -> Option<CudaStack> {
    if stack.space != Space::User {
        return None;
    }
    let in_libc =
        stack.frames.iter().take_while(|frame| frame.module.starts_with("libc.")).chain(stack.frames.first());
    if in_libc.into_iter().any(|frame| LOCKS.iter().any(|lock| frame.function.contains(lock))) {
        return Some(CudaStack::Lock);
    }
    let syncs = stack.frames.iter().rev().filter_map(|frame| sync_named(&frame.function));
    syncs.map(|one| CudaStack::Sync(one.name)).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::Trace;
    use crate::trace::gpu_sync::GpuSyncs;
    use crate::trace::record::{Record, Thread};

    fn says(frames: &[&str]) -> Option<CudaStack> {
        let frame = |text: &&str| {
            let (function, module) = text.split_once('@').unwrap_or((text, "libtorch_cuda.so"));
            Frame { function: function.into(), module: module.into(), offset: 0 }
        };
        let frames = frames.iter().map(frame).collect();
        stack_says(&Stack { id: 1, space: Space::User, frames, truncated: false })
    }

    #[test]
    fn a_stack_is_known_by_the_name_of_an_exported_function_that_waits() {
        let below = [
            "poll@libc.so.6",
            "@libcuda.so.580.1",
            "cuStreamSynchronize@libcuda.so.580.1",
            "@libcudart.so.13",
        ];
        let whole = [&below[..], &["cudaStreamSynchronize@libcudart.so.13", "at::native::item"]].concat();
        assert_eq!(says(&whole), Some(CudaStack::Sync("cudaStreamSynchronize")));
        assert_eq!(says(&below), Some(CudaStack::Sync("cuStreamSynchronize")));
    }

    #[test]
    fn a_library_of_cuda_alone_a_launch_and_a_lock_are_no_wait_for_the_gpu() {
        assert_eq!(says(&["poll@libc.so.6", "@libcuda.so.580.1", "@libcuda.so.580.1", "@libc.so.6"]), None);
        assert_eq!(
            says(&["ioctl@libc.so.6", "cuLaunchKernel@libcuda.so.1", "cudaLaunchKernel@libcudart.so.13"]),
            None
        );
        let lock = ["@libc.so.6", "pthread_rwlock_wrlock@libc.so.6", "cuStreamSynchronize@libcuda.so.1"];
        assert_eq!(says(&lock), Some(CudaStack::Lock));
        assert_eq!(says(&[]), None);
    }

    #[test]
    fn a_call_within_a_call_is_a_part_of_it_and_ids_are_those_of_the_host() {
        let mut batch = GpuSyncs::new(100);
        let mut last = 0;
        let driver = 11;
        for (ns_tid, function, start_ns, end_ns) in [
            (7, driver, 1110, 1190),
            (7, 1, 1100, 1200),
            (7, 1, 1300, 1400),
            (8, driver, 1310, 1320),
            (7, 999, 1500, 1600),
        ] {
            batch.push(&GpuSync { pid: 100, ns_tid, function, start_ns, end_ns }, &mut last);
        }
        let thread = Thread { pid: 100, tid: 200, ns_tid: 7, name: "main".into(), seen_ns: 1000 };
        let model = Trace::new().add(Record::Thread(thread)).add(Record::GpuSyncs(batch)).model();
        let mut waits: Vec<(u32, u64, u64)> = Vec::new();
        for (index, portion) in model.portions() {
            let (track, _) = model.portion(&model.threads[index], &portion);
            waits.extend(track.waits.iter().map(|wait| (track.tid, wait.start_ns, wait.end_ns)));
        }
        waits.sort_unstable();
        assert_eq!(waits, [(8, 1310, 1320), (200, 1100, 1200), (200, 1300, 1400)]);
    }
}
