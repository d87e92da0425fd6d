//! Makes the `nccl*` functions of a shared library weak, as they are in NCCL: stable Rust has no way to say so. A
//! profiler that defines one then replaces it, and calls its strong `pnccl` twin.

/// The one function that is strong in NCCL too.
const STRONG: &[u8] = b"ncclResetDebugInitInternal";

const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const DYNAMIC_SYMBOLS: u32 = 11;
const GLOBAL: u8 = 1;
const WEAK: u8 = 2;

/// Changes the bindings in the file's table of dynamic symbols; how many.
pub(crate) fn weaken(file: &mut [u8]) -> Result<usize, &'static str> {
    const DAMAGED: &str = "no whole 64-bit little-endian ELF file";
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return Err(DAMAGED);
    }
    let sections = number::<8>(file, 0, 0x28).ok_or(DAMAGED)?;
    let count = number::<2>(file, 0, 0x3c).ok_or(DAMAGED)?;
    let section = |index: usize| {
        let start = index.checked_mul(SECTION_BYTES)?.checked_add(sections)?;
        Some(Section {
            kind: number::<4>(file, start, 4)? as u32,
            offset: number::<8>(file, start, 24)?,
            bytes: number::<8>(file, start, 32)?,
            link: number::<4>(file, start, 40)?,
        })
    };
    let table = (0..count).find_map(|index| section(index).filter(|s| s.kind == DYNAMIC_SYMBOLS));
    let table = table.ok_or("no table of dynamic symbols")?;
    let names = section(table.link).ok_or(DAMAGED)?.offset;
    let mut changed = 0;
    for index in 0..table.bytes / SYMBOL_BYTES {
        let start = table.offset.checked_add(index * SYMBOL_BYTES).ok_or(DAMAGED)?;
        let name = number::<4>(file, start, 0).and_then(|name| names.checked_add(name));
        let name = name
            .and_then(|name| file.get(name..))
            .and_then(|rest| rest.split(|byte| *byte == 0).next())
            .ok_or(DAMAGED)?;
        let ours = name.starts_with(b"nccl") && name != STRONG;
        let defined = number::<2>(file, start, 6).ok_or(DAMAGED)? != 0;
        let info = file.get_mut(start + 4).ok_or(DAMAGED)?;
        if ours && defined && *info >> 4 == GLOBAL {
            *info = WEAK << 4 | *info & 0xf;
            changed += 1;
        }
    }
    Ok(changed)
}

struct Section {
    kind: u32,
    offset: usize,
    bytes: usize,
    link: usize,
}

/// The number of `N` bytes, `offset` bytes after `start`.
fn number<const N: usize>(file: &[u8], start: usize, offset: usize) -> Option<usize> {
    let at = start.checked_add(offset)?;
    let bytes = file.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_is_refused() {
        assert!(weaken(&mut []).is_err());
        assert!(weaken(&mut b"\x7fELF\x02\x01".to_vec()).is_err());
        let mut header = vec![0; 200];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[0x28..0x30].fill(0xff);
        header[0x3c] = 3;
        assert_eq!(weaken(&mut header), Err("no table of dynamic symbols"));
    }

    #[test]
    fn a_program_stays_whole() {
        let program = std::env::current_exe().expect("this program");
        let mut file = std::fs::read(program).expect("its file");
        let before = file.clone();
        // It exports no function of NCCL.
        assert_eq!(weaken(&mut file), Ok(0));
        assert!(file == before);
    }
}
