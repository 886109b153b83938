//! Times the naming of addresses of a shared library: `symbols LIBRARY [ADDRESSES]`.
//!
//! The library's code is mapped into this process, as into one under study; its addresses are named by a `Symbolizer` that
//! knows nothing yet. `cargo xtask bench symbols` runs it with an empty cache and with the one that it left.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

use stallscope::probes::event::RawStack;
use stallscope::symbols::Symbolizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("symbols LIBRARY [ADDRESSES]")?;
    let count: u64 = arguments.next().map_or(Ok(1000), |count| count.parse())?;
    let file = File::open(&path)?;
    let (offset, size) = code(&head(&file)?).ok_or("no 64-bit ELF file with code")?;
    // SAFETY: a new mapping at a place of the kernel's choice, of a file that stays open; nothing of it is executed.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size as usize,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            offset as i64,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    let start = start as u64;
    let step = size / count;
    // In an order in which neighbours do not follow each other.
    let address = |index: u64| start + (index * 7919 % count) * step;

    let begin = Instant::now();
    let mut symbolizer = Symbolizer::new();
    let pid = std::process::id();
    let name = |symbolizer: &mut Symbolizer, index: u64| {
        let raw = RawStack { pid, frames: vec![address(index)], ..RawStack::default() };
        symbolizer.stack(&raw).frames.last().is_some_and(|frame| !frame.function.is_empty())
    };
    let first = name(&mut symbolizer, 0);
    let first_ms = begin.elapsed().as_secs_f64() * 1e3;
    let named = (1..count).filter(|&index| name(&mut symbolizer, index)).count() + usize::from(first);
    let all_ms = begin.elapsed().as_secs_f64() * 1e3;
    let resident = peak_mib().unwrap_or(0);
    println!("first {first_ms:.1} ms, all {count} {all_ms:.1} ms, {named} with a name, peak {resident} MiB");
    Ok(())
}

/// Offset and size of the executable segment, in whole pages.
fn code(elf: &[u8]) -> Option<(u64, u64)> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(elf.get(at..at + 8)?.try_into().ok()?));
    let table = usize::try_from(u64_at(32)?).ok()?;
    (0..usize::from(u16_at(56)?)).find_map(|index| {
        let at = table.checked_add(index * 56)?;
        let (kind, flags) = (*elf.get(at)?, *elf.get(at + 4)?);
        let offset = u64_at(at + 8)?;
        let end = offset.checked_add(u64_at(at + 32)?)?;
        let begin = offset & !4095;
        (kind == 1 && flags & 1 != 0).then_some((begin, end - begin))
    })
}

/// The most memory that this process had resident.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? / 1024)
}

/// The file's header and program headers.
fn head(file: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, 64 << 10), &mut bytes)?;
    Ok(bytes)
}
