//! CUPTI's functions, found by name, and the parts of its records that are used. Offsets are those of
//! `CUpti_ActivityKernel9` to `13`, `CUpti_ActivityMemcpy6` and `7` and `CUpti_ActivityAPI`: CUDA 12.0 and later.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

pub const SUCCESS: u32 = 0;
pub const MULTIPLE_SUBSCRIBERS: u32 = 39;

pub const MEMCPY: u32 = 1;
pub const DRIVER: u32 = 4;
pub const RUNTIME: u32 = 5;
pub const CONCURRENT_KERNEL: u32 = 10;

pub const DRIVER_DOMAIN: u32 = 1;
pub const RUNTIME_DOMAIN: u32 = 2;
/// `CUpti_CallbackData.callbackSite`.
pub const SITE_EXIT: u32 = 1;

/// `cuptiGetVersion` of CUDA 12.0, whose records these are.
pub const OLDEST: u32 = 18;
/// That of CUDA 12.6: before it, graphs do not survive `cuptiFinalize`.
pub const FINALIZE_FROM: u32 = 24;

/// `cudaLaunchKernel`, `…_ptsz`, cooperative ones, graphs, `cudaLaunchKernelExC`, `__cudaLaunchKernel`,
/// `cudaMemcpyAsync`.
pub const RUNTIME_LAUNCHES: [u32; 11] = [211, 214, 269, 270, 311, 312, 430, 431, 505, 506, 41];
/// `cuLaunchKernel`, `cuLaunchCooperativeKernel`, `cuGraphLaunch`, `cuLaunchKernelEx` and their `_ptsz`.
pub const DRIVER_LAUNCHES: [u32; 8] = [307, 442, 477, 478, 514, 515, 652, 653];

/// Functions of either interface are numbered below this.
pub const FUNCTIONS: u32 = 1024;

type Plain = unsafe extern "C" fn(u32) -> u32;
type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);
type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

macro_rules! functions {
    ($($field:ident $name:literal $type:ty,)*) => {
        static ADDRESSES: [AtomicUsize; [$($name),*].len()] =
            [const { AtomicUsize::new(0) }; [$($name),*].len()];

        /// All functions that are needed.
        #[derive(Clone, Copy)]
        pub struct Cupti {
            $(pub $field: $type,)*
        }

        /// Looks all functions up; false where one is missing.
        pub fn find(mut lookup: impl FnMut(*const c_char) -> usize) -> bool {
            let names = [$($name.as_ptr()),*];
            let mut all = true;
            for (place, name) in ADDRESSES.iter().zip(names) {
                let address = lookup(name);
                all &= address != 0;
                place.store(address, Ordering::Release);
            }
            all
        }

        /// The functions, once they were found.
        pub fn get() -> Option<Cupti> {
            let mut addresses = ADDRESSES.iter().map(|place| place.load(Ordering::Acquire));
            $(let $field = addresses.next().filter(|address| *address != 0)?;)*
            // SAFETY: the addresses were found under these names, whose types are part of CUPTI's interface.
            unsafe { Some(Cupti { $($field: core::mem::transmute::<usize, $type>($field),)* }) }
        }
    };
}

functions! {
    version c"cuptiGetVersion" unsafe extern "C" fn(*mut u32) -> u32,
    subscribe c"cuptiSubscribe" unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> u32,
    unsubscribe c"cuptiUnsubscribe" unsafe extern "C" fn(*mut c_void) -> u32,
    enable_domain c"cuptiEnableDomain" unsafe extern "C" fn(u32, *mut c_void, u32) -> u32,
    clock c"cuptiActivityRegisterTimestampCallback" unsafe extern "C" fn(unsafe extern "C" fn() -> u64) -> u32,
    buffers c"cuptiActivityRegisterCallbacks" unsafe extern "C" fn(Requested, Completed) -> u32,
    enable c"cuptiActivityEnable" Plain,
    disable c"cuptiActivityDisable" Plain,
    enable_runtime c"cuptiActivityEnableRuntimeApi" unsafe extern "C" fn(u32, u8) -> u32,
    enable_driver c"cuptiActivityEnableDriverApi" unsafe extern "C" fn(u32, u8) -> u32,
    flush c"cuptiActivityFlushAll" Plain,
    thread_ids c"cuptiGetThreadIdType" unsafe extern "C" fn(*mut u32) -> u32,
    use_thread_ids c"cuptiSetThreadIdType" Plain,
    next c"cuptiActivityGetNextRecord" unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> u32,
    dropped c"cuptiActivityGetNumDroppedRecords" unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> u32,
    finalize c"cuptiFinalize" unsafe extern "C" fn() -> u32,
}

/// A record that CUPTI has filled in.
#[derive(Clone, Copy)]
pub struct Raw(*const u8);

impl Raw {
    /// # Safety
    ///
    /// `record` is a record that `cuptiActivityGetNextRecord` returned, and its buffer stays as it is.
    pub unsafe fn new(record: *const u8) -> Raw {
        Raw(record)
    }

    pub fn u32(self, offset: usize) -> u32 {
        // SAFETY: all offsets used lie within the record of their kind.
        unsafe { self.0.add(offset).cast::<u32>().read_unaligned() }
    }

    pub fn u64(self, offset: usize) -> u64 {
        // SAFETY: as above.
        unsafe { self.0.add(offset).cast::<u64>().read_unaligned() }
    }

    pub fn u8(self, offset: usize) -> u8 {
        // SAFETY: as above.
        unsafe { self.0.add(offset).read() }
    }
}
