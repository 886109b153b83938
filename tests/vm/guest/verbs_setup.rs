//! A program that registers memory and sets queue pairs up through libibverbs, and says what it did by its own count and clock.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Instant;

type Pointer = *mut c_void;

/// Bytes of each registration.
pub const SIZES: [usize; 3] = [4 << 10, 1 << 20, 64 << 20];
/// Registrations of each size.
pub const TIMES: usize = 4;
pub const QUEUE_PAIRS: usize = 4;

/// The functions of libibverbs that are used, by their default versions.
struct Verbs(Pointer);

impl Verbs {
    fn open() -> Verbs {
        // SAFETY: loading the library runs its constructors only.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "libibverbs.so.1 is not there");
        Verbs(library)
    }

    /// Address of a function.
    fn at(&self, name: &CStr) -> Pointer {
        // SAFETY: the library is open.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "no {name:?}");
        address
    }
}

macro_rules! function {
    ($verbs:expr, $name:literal, fn($($argument:ty),*) -> $result:ty) => {
        // SAFETY: that is the function's type.
        unsafe {
            std::mem::transmute::<Pointer, unsafe extern "C" fn($($argument),*) -> $result>($verbs.at($name))
        }
    };
}

/// `struct ibv_qp_init_attr`.
#[derive(Default)]
#[repr(C)]
struct InitAttributes {
    context: u64,
    send_cq: u64,
    recv_cq: u64,
    srq: u64,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline: u32,
    kind: u32,
    signal_all: c_int,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Attributes {
    state: u32,
    current: u32,
    mtu: u32,
    migration: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    destination: u32,
    access: u32,
    capacity: [u32; 5],
    address: Address,
    alternative: Address,
    pkey_index: u16,
    alternative_pkey: u16,
    notify: u8,
    draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port: u8,
    timeout: u8,
    retry: u8,
    rnr_retry: u8,
    alternative_port: u8,
    alternative_timeout: u8,
    rate_limit: u32,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Address {
    gid: [u64; 2],
    flow: u32,
    gid_index: u8,
    hop_limit: u8,
    class: u8,
    lid: u16,
    level: u8,
    path_bits: u8,
    rate: u8,
    is_global: u8,
    port: u8,
}

const _: () = assert!(size_of::<Address>() == 32 && size_of::<Attributes>() == 144);
const _: () = assert!(size_of::<InitAttributes>() == 64);

/// `IBV_QP_STATE`, `IBV_QP_PKEY_INDEX` …
const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

/// `qp_num` in `struct ibv_qp`.
const QP_NUM: usize = 52;

/// Sets up, takes down and prints its counts.
pub fn run() {
    let verbs = Verbs::open();
    let context = open_device(&verbs);
    let allocate = function!(verbs, c"ibv_alloc_pd", fn(Pointer) -> Pointer);
    // SAFETY: libibverbs' own function on what it returned.
    let pd = unsafe { allocate(context) };
    assert!(!pd.is_null(), "no protection domain");
    let (register_ns, deregister_ns, bytes) = register(&verbs, pd);
    let modify_ns = queue_pairs(&verbs, context, pd);
    println!(
        "register_ns={register_ns} deregister_ns={deregister_ns} bytes={bytes} modify_ns={modify_ns} pid={}",
        std::process::id()
    );
}

fn open_device(verbs: &Verbs) -> Pointer {
    let mut count: c_int = 0;
    let list = function!(verbs, c"ibv_get_device_list", fn(*mut c_int) -> *mut Pointer);
    let name = function!(verbs, c"ibv_get_device_name", fn(Pointer) -> *const c_char);
    let open = function!(verbs, c"ibv_open_device", fn(Pointer) -> Pointer);
    // SAFETY: a list of `count` devices with names.
    unsafe {
        let list = list(&raw mut count);
        for at in 0..count as usize {
            let device = *list.add(at);
            if CStr::from_ptr(name(device)) == c"rxe0" {
                let context = open(device);
                assert!(!context.is_null(), "rxe0 cannot be opened");
                return context;
            }
        }
    }
    panic!("no rxe0 among {count} devices");
}

/// How long registering and deregistering took, by this program's clock, and the bytes of all.
fn register(verbs: &Verbs, pd: Pointer) -> (u128, u128, usize) {
    let register = function!(verbs, c"ibv_reg_mr", fn(Pointer, Pointer, usize, c_int) -> Pointer);
    let deregister = function!(verbs, c"ibv_dereg_mr", fn(Pointer) -> c_int);
    let (mut register_ns, mut deregister_ns, mut bytes) = (0, 0, 0);
    for size in SIZES {
        for _ in 0..TIMES {
            let memory = vec![1_u8; size];
            let start = Instant::now();
            // SAFETY: memory that lives until it is deregistered; local write.
            let region = unsafe { register(pd, memory.as_ptr() as Pointer, size, 1) };
            register_ns += start.elapsed().as_nanos();
            assert!(!region.is_null(), "{size} bytes cannot be registered");
            bytes += size;
            let start = Instant::now();
            // SAFETY: the region from above.
            assert_eq!(unsafe { deregister(region) }, 0);
            deregister_ns += start.elapsed().as_nanos();
        }
    }
    (register_ns, deregister_ns, bytes)
}

/// Takes queue pairs through INIT and RTR to RTS, each connected to itself; how long that took.
fn queue_pairs(verbs: &Verbs, context: Pointer, pd: Pointer) -> u128 {
    let create_cq =
        function!(verbs, c"ibv_create_cq", fn(Pointer, c_int, Pointer, Pointer, c_int) -> Pointer);
    let create = function!(verbs, c"ibv_create_qp", fn(Pointer, *mut InitAttributes) -> Pointer);
    let destroy = function!(verbs, c"ibv_destroy_qp", fn(Pointer) -> c_int);
    let modify = function!(verbs, c"ibv_modify_qp", fn(Pointer, *mut Attributes, c_int) -> c_int);
    let query_gid = function!(verbs, c"ibv_query_gid", fn(Pointer, u8, c_int, *mut [u64; 2]) -> c_int);
    let mut gid = [0_u64; 2];
    let mut modify_ns = 0;
    // SAFETY: libibverbs' own functions on what they returned, and structures of its layout.
    unsafe {
        assert_eq!(query_gid(context, 1, 1, &raw mut gid), 0);
        let cq = create_cq(context, 64, std::ptr::null_mut(), std::ptr::null_mut(), 0);
        assert!(!cq.is_null(), "no completion queue");
        for _ in 0..QUEUE_PAIRS {
            let mut wanted = InitAttributes {
                send_cq: cq as u64,
                recv_cq: cq as u64,
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                kind: 2,
                ..InitAttributes::default()
            };
            let pair = create(pd, &raw mut wanted);
            assert!(!pair.is_null(), "no queue pair");
            let number = *pair.cast::<u32>().add(QP_NUM / 4);
            let address =
                Address { gid, gid_index: 1, hop_limit: 1, is_global: 1, port: 1, ..Address::default() };
            let ladder = [
                (Attributes { state: 1, port: 1, ..Attributes::default() }, TO_INIT),
                (
                    Attributes {
                        state: 2,
                        mtu: 3,
                        destination: number,
                        address,
                        max_dest_rd_atomic: 1,
                        min_rnr_timer: 12,
                        ..Attributes::default()
                    },
                    TO_RTR,
                ),
                (
                    Attributes {
                        state: 3,
                        timeout: 14,
                        retry: 7,
                        rnr_retry: 7,
                        max_rd_atomic: 1,
                        ..Attributes::default()
                    },
                    TO_RTS,
                ),
            ];
            for (mut attributes, mask) in ladder {
                let start = Instant::now();
                assert_eq!(modify(pair, &raw mut attributes, mask), 0, "to state {}", attributes.state);
                modify_ns += start.elapsed().as_nanos();
            }
            assert_eq!(destroy(pair), 0);
        }
    }
    modify_ns
}
