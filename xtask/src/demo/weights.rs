//! Where the demo's tensors come from: a safetensors file, or a block made in memory.
//!
//! A file is believed in nothing before it has been checked: the header's length against the file's, the
//! header against the format, the tensors' ranges against each other and the file's end. After that a rank
//! reads one tensor at a time, so memory does not grow with the file.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use comm_core::tensor::{DType, Tensor, TensorBuf, TensorError};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::block;

/// The format's own bound, in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// Length of the header's length.
const PREFIX: u64 = 8;
/// Most dimensions of a tensor in this workspace.
const MAX_DIMS: usize = 16;

/// What is known about a tensor before its bytes are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Its name in the file.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, in elements.
    pub shape: Vec<usize>,
    /// Length of its data, in bytes.
    pub bytes: u64,
}

impl Spec {
    /// The tensor that has these little-endian, row-major bytes.
    ///
    /// # Errors
    /// There are more or fewer than the shape has, or no memory.
    pub fn tensor(&self, bytes: &[u8]) -> Result<Tensor, TensorError> {
        let mut tensor = TensorBuf::zeros(&self.shape, self.dtype)?;
        let (seen, expected) = (bytes.len(), tensor.nbytes());
        if seen != expected {
            return Err(TensorError::Length { op: "Spec::tensor", unit: "bytes", seen, expected });
        }
        tensor.bytes_mut()?.copy_from_slice(bytes);
        Ok(tensor.freeze())
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({} {:?})", self.name, self.dtype, self.shape)
    }
}

/// Which weights a run uses; made of text so that a rank in another process can be told.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Choice {
    /// The generated transformer block.
    Block,
    /// A safetensors file.
    File(PathBuf),
}

/// The tensors of a run, ordered as in the file.
#[derive(Debug)]
pub struct Weights {
    specs: Vec<Spec>,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Memory(Vec<Vec<u8>>),
    File { path: PathBuf, file: File, starts: Vec<u64> },
}

impl Weights {
    /// Opens what was chosen.
    ///
    /// # Errors
    /// One line that names the file and says what is wrong with it.
    pub fn open(choice: &Choice) -> Result<Weights, String> {
        match choice {
            Choice::Block => Ok(Weights::in_memory(block::tensors())),
            Choice::File(path) => open_file(path).map_err(|why| format!("{}: {why}", path.display())),
        }
    }

    /// Tensors with their bytes.
    pub fn in_memory(tensors: Vec<(Spec, Vec<u8>)>) -> Weights {
        let (specs, bytes) = tensors.into_iter().unzip();
        Weights { specs, data: Data::Memory(bytes) }
    }

    /// All tensors.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.specs.iter().map(|spec| spec.bytes).sum()
    }

    /// The bytes of tensor `i`, little-endian and row-major.
    ///
    /// # Errors
    /// One line, if the file cannot be read, or has changed since it was opened.
    pub fn read(&self, i: usize) -> Result<Vec<u8>, String> {
        match &self.data {
            Data::Memory(all) => all.get(i).cloned().ok_or_else(|| format!("there is no tensor {i}")),
            Data::File { path, file, starts } => {
                let (Some(spec), Some(start)) = (self.specs.get(i), starts.get(i)) else {
                    return Err(format!("there is no tensor {i}"));
                };
                let len = usize::try_from(spec.bytes).map_err(|_| format!("tensor {spec} is too large"))?;
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, *start)
                    .map_err(|e| format!("{}: cannot read tensor {spec}: {e}", path.display()))?;
                Ok(bytes)
            }
        }
    }
}

fn open_file(path: &Path) -> Result<Weights, String> {
    // Asked before opening: opening a pipe would wait for its writer.
    let kind = std::fs::metadata(path).map_err(|e| e.to_string())?.file_type();
    if kind.is_dir() {
        return Err("it is a directory, not a safetensors file".to_owned());
    }
    if !kind.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let file = File::open(path).map_err(|e| e.to_string())?;
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    let (header, metadata) =
        read_header(&file, len).map_err(|why| format!("not a safetensors file: {why}"))?;

    let mut specs = Vec::new();
    let mut starts = Vec::new();
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let Some(dtype) = dtype(info.dtype) else {
            return Err(format!("tensor {name:?} has the dtype {}, which is not supported", info.dtype));
        };
        if info.shape.len() > MAX_DIMS {
            return Err(format!(
                "tensor {name:?} has {} dimensions, at most {MAX_DIMS} are supported",
                info.shape.len()
            ));
        }
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        starts.push(PREFIX + header + start);
        specs.push(Spec { name, dtype, shape: info.shape.clone(), bytes: end - start });
    }
    if specs.is_empty() {
        return Err("it holds no tensors".to_owned());
    }
    let weights = Weights { specs, data: Data::File { path: path.to_owned(), file, starts } };
    weights.check_bools()?;
    Ok(weights)
}

/// Reads the header and checks it against the file's length; returns its own length too.
fn read_header(file: &File, len: u64) -> Result<(u64, Metadata), String> {
    if len < PREFIX {
        return Err(format!("it has {len} bytes, fewer than the {PREFIX} of the header's length"));
    }
    let mut prefix = [0; PREFIX as usize];
    file.read_exact_at(&mut prefix, 0).map_err(|e| e.to_string())?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER {
        return Err(format!(
            "its header would have {header} bytes, more than the format allows ({MAX_HEADER})"
        ));
    }
    if header > len - PREFIX {
        return Err(format!(
            "its header would have {header} bytes, the whole file has {len}; it is cut or no such file"
        ));
    }
    let size = usize::try_from(header).map_err(|e| e.to_string())?;
    let mut text = vec![0; size];
    file.read_exact_at(&mut text, PREFIX).map_err(|e| e.to_string())?;
    // This also checks that the ranges follow each other without a gap and fit dtype times shape.
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|e| format!("its header is wrong: {e}"))?;
    let expected = (metadata.data_len() as u64).checked_add(PREFIX + header);
    match expected {
        Some(expected) if expected == len => Ok((header, metadata)),
        Some(expected) if expected > len => {
            Err(format!("it is cut: its header speaks of {expected} bytes, it has {len}"))
        }
        Some(expected) => Err(format!("its header speaks of {expected} bytes, it has {len}")),
        None => Err("its tensors would end past the largest file offset".to_owned()),
    }
}

impl Weights {
    /// A bool is 0 or 1; a tensor with anything else in it cannot be made.
    fn check_bools(&self) -> Result<(), String> {
        for (i, spec) in self.specs.iter().enumerate() {
            if spec.dtype == DType::Bool
                && let Some(at) = self.read(i)?.iter().position(|&byte| byte > 1)
            {
                return Err(format!("tensor {spec} has a byte at {at} that is neither 0 nor 1"));
            }
        }
        Ok(())
    }
}

/// The workspace's dtype of one in a file, if it has it.
fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::U64 => DType::U64,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::F8_E5M2 => DType::F8E5M2,
        Dtype::C64 => DType::Complex64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    type Try = Result<(), Box<dyn std::error::Error>>;

    fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn one(dtype: &str, shape: &Value, from: u64, to: u64) -> String {
        json!({ "w": { "dtype": dtype, "shape": shape, "data_offsets": [from, to] } }).to_string()
    }

    fn open_bytes(bytes: &[u8]) -> Result<Weights, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let path = folder.path().join("w.safetensors");
        std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
        Weights::open(&Choice::File(path))
    }

    fn refused(bytes: &[u8], because: &str) {
        match open_bytes(bytes) {
            Err(line) => {
                assert!(
                    line.contains("w.safetensors: ") && line.contains(because),
                    "{line:?} for {because:?}"
                );
                assert!(!line.contains('\n'), "{line:?}");
            }
            Ok(w) => panic!("it took {w:?}, and should have said {because:?}"),
        }
    }

    #[test]
    fn a_sound_file_is_read() -> Try {
        let header = json!({
            "__metadata__": { "format": "pt" },
            "b": { "dtype": "I64", "shape": [], "data_offsets": [0, 8] },
            "a": { "dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16] },
            "empty": { "dtype": "F16", "shape": [0, 3], "data_offsets": [16, 16] },
        });
        let data: Vec<u8> = (0..16).collect();
        let weights = open_bytes(&with_header(&header.to_string(), &data))?;
        let names: Vec<_> = weights.specs().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["b", "a", "empty"]);
        assert_eq!(weights.bytes(), 16);
        assert_eq!(weights.read(1)?, data[8..]);
        assert!(weights.read(2)?.is_empty());
        assert!(weights.read(3).is_err());
        assert_eq!(weights.specs()[1].to_string(), "\"a\" (f32 [1, 2])");
        Ok(())
    }

    #[test]
    fn lengths_that_lie() {
        refused(b"", "0 bytes");
        refused(b"short", "5 bytes");
        refused(&u64::MAX.to_le_bytes(), "more than the format allows");
        refused(&1_000u64.to_le_bytes(), "the whole file has 8");
        refused(&with_header("", b""), "header is wrong");
        let sound = with_header(&one("F32", &json!([2]), 0, 8), &[0; 8]);
        assert!(open_bytes(&sound).is_ok());
        for cut in 0..sound.len() {
            assert!(open_bytes(&sound[..cut]).is_err(), "cut at {cut}");
        }
        refused(&sound[..sound.len() - 1], "it is cut");
        let long = [sound, vec![0]].concat();
        refused(&long, "speaks of");
    }

    #[test]
    fn headers_that_lie() {
        let zero = [0; 8];
        let try_one = |header: String, because: &str| refused(&with_header(&header, &zero), because);
        try_one("not JSON at all".to_owned(), "header is wrong");
        try_one("[1, 2, 3]".to_owned(), "header is wrong");
        try_one("{\"w\": 3}".to_owned(), "header is wrong");
        try_one("{\"w\": {\"dtype\": \"F32\"}}".to_owned(), "missing field");
        try_one("[".repeat(100_000), "header is wrong");
        try_one(one("F31", &json!([2]), 0, 8), "F31");
        try_one(one("F32", &json!([3]), 0, 8), "header is wrong");
        try_one(one("F32", &json!([2]), 4, 12), "invalid offset");
        try_one(one("F32", &json!([2]), 8, 0), "invalid offset");
        try_one(one("F32", &json!([-2]), 0, 8), "header is wrong");
        try_one(one("F32", &json!([2.5]), 0, 8), "header is wrong");
        try_one(one("F32", &json!([4]), 0, 16), "it is cut");
        try_one(one("F64", &json!([u64::MAX, 2]), 0, 8), "overflow");
        try_one(one("U8", &json!([u64::MAX - 20]), 0, u64::MAX - 20), "file");
        try_one(one("F4", &json!([16]), 0, 8), "F4, which is not supported");
        try_one(one("F8_E8M0", &json!([8]), 0, 8), "not supported");
        try_one(
            one("U8", &json!([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 8]), 0, 8),
            "17 dimensions",
        );
        try_one(
            "{\"w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}".to_owned(),
            "header is wrong",
        );
        refused(&with_header("\u{0}\u{0}{}", &[]), "header is wrong");
        refused(&[&8u64.to_le_bytes()[..], &[0xff; 8]].concat(), "header is wrong");
        refused(&with_header("{}", &[]), "no tensors");
        refused(&with_header(&one("BOOL", &json!([3]), 0, 3), &[0, 1, 2]), "neither 0 nor 1");
        let overlapping = json!({
            "a": { "dtype": "U8", "shape": [6], "data_offsets": [0, 6] },
            "b": { "dtype": "U8", "shape": [4], "data_offsets": [4, 8] },
        });
        try_one(overlapping.to_string(), "invalid offset");
        let gap = json!({
            "a": { "dtype": "U8", "shape": [2], "data_offsets": [0, 2] },
            "b": { "dtype": "U8", "shape": [4], "data_offsets": [4, 8] },
        });
        try_one(gap.to_string(), "invalid offset");
    }

    #[test]
    fn what_is_no_file() -> Try {
        let folder = tempfile::tempdir()?;
        let why = |path: &Path| Weights::open(&Choice::File(path.to_owned())).err().unwrap_or_default();
        assert!(why(folder.path()).contains("directory"));
        assert!(why(&folder.path().join("gone")).contains("No such file"));
        assert!(why(Path::new("/dev/zero")).contains("not a regular file"));
        Ok(())
    }

    #[test]
    fn a_file_that_shrinks_is_noticed() -> Try {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("w.safetensors");
        std::fs::write(&path, with_header(&one("F32", &json!([2]), 0, 8), &[0; 8]))?;
        let weights = Weights::open(&Choice::File(path.clone()))?;
        std::fs::File::options().write(true).open(&path)?.set_len(20)?;
        assert!(weights.read(0).is_err_and(|e| e.contains("cannot read tensor")));
        Ok(())
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = block::Stream::new(5);
        for len in 0..200 {
            let bytes: Vec<u8> = (0..len).map(|_| state.next() as u8).collect();
            let mut framed = with_header(&String::from_utf8_lossy(&bytes), &[]);
            assert!(open_bytes(&bytes).is_err());
            assert!(open_bytes(&framed).is_err());
            framed[1] = 0xff;
            assert!(open_bytes(&framed).is_err());
        }
    }
}
