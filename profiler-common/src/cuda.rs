//! Functions of CUDA in which the caller waits until the GPU is done.
//!
//! The agent names one by its place in [`SYNCS`], which is what traces have too: entries are only ever appended.

/// A function of the CUDA runtime or driver that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncFunction {
    /// The exported symbol's name, without the suffixes of the compiler's choice of a default stream.
    pub name: &'static str,
    pub is_driver: bool,
    /// What CUPTI numbers it as (`CUpti_runtime_api_trace_cbid`, `CUpti_driver_api_trace_cbid`); 0 stands for none.
    pub ids: [u32; 2],
}

const fn runtime(name: &'static str, ids: [u32; 2]) -> SyncFunction {
    SyncFunction { name, is_driver: false, ids }
}

const fn driver(name: &'static str, ids: [u32; 2]) -> SyncFunction {
    SyncFunction { name, is_driver: true, ids }
}

pub const SYNCS: [SyncFunction; 16] = [
    runtime("cudaDeviceSynchronize", [165, 0]),
    runtime("cudaStreamSynchronize", [131, 239]),
    runtime("cudaEventSynchronize", [137, 0]),
    runtime("cudaThreadSynchronize", [126, 0]),
    runtime("cudaMemcpy", [31, 215]),
    runtime("cudaMemcpy2D", [32, 216]),
    runtime("cudaMemcpy3D", [144, 245]),
    runtime("cudaMemcpyToSymbol", [39, 223]),
    runtime("cudaMemcpyFromSymbol", [40, 224]),
    runtime("cudaMemcpyPeer", [160, 0]),
    driver("cuCtxSynchronize", [17, 0]),
    driver("cuStreamSynchronize", [126, 440]),
    driver("cuEventSynchronize", [121, 0]),
    driver("cuMemcpyHtoD", [276, 397]),
    driver("cuMemcpyDtoH", [278, 398]),
    driver("cuMemcpyDtoD", [280, 399]),
];

/// The place in [`SYNCS`] of what CUPTI numbers so.
#[must_use]
pub fn sync_of(is_driver: bool, id: u32) -> Option<u16> {
    let is_it = |one: &SyncFunction| one.is_driver == is_driver && id != 0 && one.ids.contains(&id);
    SYNCS.iter().position(is_it).and_then(|index| u16::try_from(index).ok())
}

/// The function that an exported symbol of this name is: `cudaStreamSynchronize_ptsz`, `cuMemcpyDtoH_v2_ptds`,
/// `cudaMemcpy@@libcudart.so.12` too.
#[must_use]
pub fn sync_named(symbol: &str) -> Option<&'static SyncFunction> {
    if !symbol.starts_with("cu") {
        return None;
    }
    let bare = symbol.split('@').next().unwrap_or_default();
    let bare = bare.strip_suffix("_ptsz").or_else(|| bare.strip_suffix("_ptds")).unwrap_or(bare);
    let bare = bare.strip_suffix("_v2").unwrap_or(bare);
    SYNCS.iter().find(|one| one.name == bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_an_interface_stands_for_two_functions() {
        for (index, one) in SYNCS.iter().enumerate() {
            for id in one.ids.into_iter().filter(|id| *id != 0) {
                assert_eq!(sync_of(one.is_driver, id), Some(index as u16), "{one:?}");
            }
        }
        assert_eq!(sync_of(false, 0), None);
        assert_eq!(sync_of(false, 211), None);
    }

    #[test]
    fn a_symbol_is_known_with_the_suffixes_that_libraries_give_it_and_by_no_part_of_its_name() {
        let name = |symbol: &str| sync_named(symbol).map(|one| one.name);
        for (symbol, expected) in [
            ("cudaStreamSynchronize_ptsz", "cudaStreamSynchronize"),
            ("cuMemcpyDtoH_v2_ptds", "cuMemcpyDtoH"),
            ("cudaMemcpy@@libcudart.so.12", "cudaMemcpy"),
            ("cuCtxSynchronize", "cuCtxSynchronize"),
        ] {
            assert_eq!(name(symbol), Some(expected), "{symbol}");
        }
        for symbol in
            ["cudaMemcpyAsync", "cudaLaunchKernel", "at::cudaStreamSynchronize", "", "my_cudaMemcpy"]
        {
            assert_eq!(name(symbol), None, "{symbol}");
        }
    }
}
