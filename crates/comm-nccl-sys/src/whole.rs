//! Whether a library is all there, before the dynamic linker maps it.
//!
//! That one maps as much as the file says that it has. Of a file whose end is missing, since the disk was full or the copy is not
//! through, it then touches what is not there, and the process is killed.

use std::fs::File;
use std::path::Path;

use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

/// Says, in one line, that a file has not all that it says that it has, or is none. Whatever else is wrong with it the linker says.
pub(crate) fn whole(path: &Path) -> Result<(), String> {
    let Ok(metadata) = path.metadata() else { return Ok(()) };
    if !metadata.is_file() {
        // The linker would wait for somebody to write into a pipe.
        return Err("it is no regular file".to_owned());
    }
    let Ok(file) = File::open(path) else { return Ok(()) };
    let data = ReadCache::new(file);
    let Ok(header) = FileHeader64::<Endianness>::parse(&data) else { return Ok(()) };
    let segments = header.endian().and_then(|endian| Ok((endian, header.program_headers(endian, &data)?)));
    let (endian, segments) = segments.map_err(|e| e.to_string())?;
    let end_of =
        |s: &object::elf::ProgramHeader64<Endianness>| s.p_offset(endian).saturating_add(s.p_filesz(endian));
    let ends = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD).map(end_of);
    match (ends.max(), (&data).len()) {
        (Some(end), Ok(len)) if end > len => Err(format!("its end is missing: of {end} bytes it has {len}")),
        _ => Ok(()),
    }
}
