//! Reader of the sizes of firmware from the section headers of a 32-bit little-endian ELF file.

/// Flash and RAM that a firmware uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of bytes that are flashed.
    pub flash: u64,
    /// Number of bytes of RAM in use before the first call, without the stack.
    pub ram: u64,
}

/// Type of a section whose content is in the file.
const PROGBITS: u32 = 1;
/// Type of a section of zeros, which are not in the file.
const NOBITS: u32 = 8;
/// Flag of a section that is writable at run time.
const WRITE: u32 = 1;
/// Flag of a section that occupies memory at run time.
const ALLOC: u32 = 2;

/// Sums the sizes of allocated sections, except stacks and placeholders of the linker (with `dummy` in the
/// name).
///
/// # Errors
/// A message if the file is not of this format.
pub fn sizes(file: &[u8]) -> Result<Sizes, String> {
    // The class is 32 bits, the byte order little-endian.
    if !file.starts_with(b"\x7fELF\x01\x01") {
        return Err("not a 32-bit little-endian ELF file".to_owned());
    }
    let cut_short = || "the ELF file is cut short".to_owned();
    let read_u16 = |offset: usize| {
        file.get(offset..offset + 2)
            .map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))
            .ok_or_else(cut_short)
    };
    let read_u32 = |offset: usize| {
        file.get(offset..offset + 4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .ok_or_else(cut_short)
    };
    // Fields of the ELF header: offset, size and number of the section headers, and index of the section with
    // their names.
    let start = read_u32(0x20)? as usize;
    let size = read_u16(0x2e)?;
    let count = read_u16(0x30)?;
    let names = read_u16(0x32)?;
    // Offsets of the fields of a section header: name 0, type 4, flags 8, file offset 16, size 20.
    let strings = read_u32(start + names * size + 16)? as usize;
    let mut sizes = Sizes::default();
    for header in (0..count).map(|index| start + index * size) {
        let kind = read_u32(header + 4)?;
        let flags = read_u32(header + 8)?;
        let bytes = u64::from(read_u32(header + 20)?);
        let name = file.get(strings + read_u32(header)? as usize..).ok_or_else(cut_short)?;
        let name = String::from_utf8_lossy(name.split(|&byte| byte == 0).next().unwrap_or_default());
        let is_left_out = name.contains("dummy") || name.contains("stack");
        if !matches!(kind, PROGBITS | NOBITS) || flags & ALLOC == 0 || is_left_out {
            continue;
        }
        if kind == PROGBITS {
            sizes.flash += bytes;
        }
        if flags & WRITE != 0 {
            sizes.ram += bytes;
        }
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Creates a file with these sections: name, type, flags, size.
    fn elf_file(sections: &[(&str, u32, u32, u32)]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut headers = Vec::new();
        let mut header = |name: u32, kind: u32, flags: u32, offset: u32, size: u32| {
            for word in [name, kind, flags, 0, offset, size, 0, 0, 0, 0] {
                headers.extend(word.to_le_bytes());
            }
        };
        for (name, kind, flags, size) in sections {
            header(strings.len() as u32, *kind, *flags, 0, *size);
            strings.extend(name.bytes().chain([0]));
        }
        header(0, 3, 0, 52, strings.len() as u32);
        let mut bytes = b"\x7fELF\x01\x01".to_vec();
        bytes.resize(52, 0);
        bytes[0x20..0x24].copy_from_slice(&(52 + strings.len() as u32).to_le_bytes());
        bytes[0x2e..0x30].copy_from_slice(&40u16.to_le_bytes());
        bytes[0x30..0x32].copy_from_slice(&(sections.len() as u16 + 1).to_le_bytes());
        bytes[0x32..0x34].copy_from_slice(&(sections.len() as u16).to_le_bytes());
        bytes.extend(strings);
        bytes.extend(headers);
        bytes
    }

    #[test]
    fn data_counts_in_flash_and_in_ram_and_zeros_in_ram_only() {
        let firmware = elf_file(&[
            (".text", PROGBITS, ALLOC | 4, 1000),
            (".data", PROGBITS, ALLOC | WRITE, 20),
            (".bss", NOBITS, ALLOC | WRITE, 300),
            (".debug_line", PROGBITS, 0, 7000),
            (".ARM.exidx", 0x7000_0001, ALLOC, 16),
            (".stack", NOBITS, ALLOC | WRITE, 4096),
            (".text_dummy", NOBITS, ALLOC | WRITE, 512),
        ]);
        assert_eq!(sizes(&firmware), Ok(Sizes { flash: 1020, ram: 320 }));
    }

    #[test]
    fn other_files_and_cut_files_are_errors() {
        assert!(sizes(b"").is_err());
        assert!(sizes(b"\x7fELF\x02\x01").is_err());
        let firmware = elf_file(&[(".text", PROGBITS, ALLOC, 1000)]);
        assert!(sizes(&firmware[..firmware.len() - 20]).unwrap_err().contains("cut short"));
        assert!(sizes(&firmware[..40]).is_err());
    }
}
