//! Forged memory, right and wrong.

use std::path::PathBuf;

use super::*;
use crate::target::maps::Perms;

const HEAP: u64 = 0x5000_0000_0000;
const TEXT: u64 = 0x7f00_0000_0000;
const PAGE: usize = 4096;
const CONTEXT: usize = 0x140;
const DEVICE: usize = 0x400;
const PD: usize = 0x800;
const CQ: usize = 0x900;
const QP: usize = 0xa00;

/// One resident heap.
struct Forged(Vec<u8>);

impl Memory for Forged {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let Some(at) = address.checked_sub(HEAP).and_then(|at| usize::try_from(at).ok()) else {
            return false;
        };
        let Some(from) = at.checked_add(buffer.len()).and_then(|end| self.0.get(at..end)) else {
            return false;
        };
        buffer.copy_from_slice(from);
        true
    }

    fn resident(&self, start: u64, end: u64, take: &mut dyn FnMut(u64, u64) -> bool) {
        if start == HEAP {
            take(start, end.min(HEAP + self.0.len() as u64));
        }
    }
}

impl Forged {
    fn put64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn put_name(&mut self, at: usize, name: &str) {
        self.0[at..at + name.len()].copy_from_slice(name.as_bytes());
    }

    /// A context with one queue pair, in which everything fits.
    fn right() -> Forged {
        let mut heap = Forged(vec![0; 4 * PAGE]);
        heap.put64(CONTEXT, HEAP + DEVICE as u64);
        for (at, function) in
            [(CONTEXT_POLL_CQ, 0x100), (CONTEXT_POST_SEND, 0x200), (CONTEXT_POST_RECV, 0x300)]
        {
            heap.put64(CONTEXT + at, TEXT + function);
        }
        heap.put32(CONTEXT + CONTEXT_CMD_FD, 5);
        heap.put_name(DEVICE + DEVICE_NAME, "mlx5_0");
        heap.put_name(DEVICE + DEVICE_FILE, "uverbs0");
        let context = HEAP + CONTEXT as u64;
        for at in [PD, CQ, QP] {
            heap.put64(at, context);
        }
        for (at, object) in [(QP_PD, PD), (QP_SEND_CQ, CQ), (QP_RECV_CQ, CQ)] {
            heap.put64(QP + at, HEAP + object as u64);
        }
        heap.put32(QP + QP_NUMBER, 417);
        heap.put32(QP + QP_STATE, 3);
        heap.put32(QP + QP_TYPE, 2);
        heap
    }
}

fn maps(heap: &Forged) -> Vec<Mapping> {
    let perms = |write, execute| Perms { read: true, write, execute, shared: false };
    vec![
        Mapping {
            start: HEAP,
            end: HEAP + heap.0.len() as u64,
            perms: perms(true, false),
            path: PathBuf::from("[heap]"),
            ..Mapping::default()
        },
        Mapping {
            start: TEXT,
            end: TEXT + 0x1000,
            perms: perms(false, true),
            inode: 9,
            path: PathBuf::from("/usr/lib/libmlx5.so.1.24.44.0"),
            ..Mapping::default()
        },
    ]
}

fn found(heap: &Forged) -> Found {
    let devices = [(5, "uverbs0".to_owned())];
    scan(heap, Surroundings { maps: &maps(heap), devices: &devices })
}

#[test]
fn a_context_and_its_queue_pair_are_found() {
    let found = found(&Forged::right());
    assert_eq!(
        found.contexts,
        [Context {
            address: HEAP + CONTEXT as u64,
            device: "mlx5_0".to_owned(),
            post_send: TEXT + 0x200,
            poll_cq: TEXT + 0x100,
        }]
    );
    let [queue_pair] = found.queue_pairs.as_slice() else { panic!("{:?}", found.queue_pairs) };
    assert_eq!((queue_pair.number, queue_pair.state, queue_pair.kind), (417, 3, 2));
    assert!(!queue_pair.extended && !found.cut);
}

#[test]
fn a_context_in_which_anything_is_wrong_is_none() {
    let spoils: [fn(&mut Forged); 6] = [
        |heap| heap.put64(CONTEXT + CONTEXT_POLL_CQ, HEAP),
        |heap| heap.put64(CONTEXT + CONTEXT_POST_RECV, 0),
        |heap| heap.put32(CONTEXT + CONTEXT_CMD_FD, 6),
        |heap| heap.put64(CONTEXT, 0xdead_beef),
        |heap| heap.put64(CONTEXT, u64::MAX - 3),
        |heap| heap.put_name(DEVICE + DEVICE_FILE, "uverbs1"),
    ];
    for (index, spoil) in spoils.iter().enumerate() {
        let mut heap = Forged::right();
        spoil(&mut heap);
        assert_eq!(found(&heap).contexts, [], "{index}");
    }
}

#[test]
fn a_queue_pair_in_which_anything_is_wrong_is_none() {
    let spoils: [fn(&mut Forged); 6] = [
        |heap| heap.put32(QP + QP_NUMBER, 0),
        |heap| heap.put32(QP + QP_NUMBER, 1 << 24),
        |heap| heap.put32(QP + QP_STATE, 8),
        |heap| heap.put32(QP + QP_TYPE, 77),
        |heap| heap.put64(QP + QP_SEND_CQ, u64::MAX),
        |heap| heap.put64(PD, 1),
    ];
    for (index, spoil) in spoils.iter().enumerate() {
        let mut heap = Forged::right();
        spoil(&mut heap);
        assert_eq!(found(&heap).queue_pairs, [], "{index}");
    }
}

#[test]
fn memory_full_of_pointers_into_the_provider_ends_at_a_limit() {
    let mut heap = Forged(vec![0; 4 << 20]);
    for at in (0..heap.0.len()).step_by(8) {
        heap.put64(at, TEXT + 8);
    }
    let found = found(&heap);
    assert!(found.cut && found.contexts.is_empty());
}

#[test]
fn no_device_or_no_provider_needs_no_search() {
    let heap = Forged::right();
    let none = scan(&heap, Surroundings { maps: &maps(&heap), devices: &[] });
    assert_eq!(none, Found::default());
    let devices = [(5, "uverbs0".to_owned())];
    let heap_only = &maps(&heap)[..1];
    assert_eq!(scan(&heap, Surroundings { maps: heap_only, devices: &devices }), Found::default());
}

#[test]
fn providers_are_known_by_their_names() {
    for name in
        ["libmlx5.so.1", "libmlx5.so.1.24.44.0", "libmlx5-rdmav34.so", "libefa.so.1", "librxe-rdmav34.so"]
    {
        assert!(is_provider(name), "{name}");
    }
    for name in ["libibverbs.so.1", "libmlx5", "mlx5.so", "libc.so.6", "libmlx5tools.so.2", ""] {
        assert!(!is_provider(name), "{name}");
    }
}
