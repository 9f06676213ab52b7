//! The default weights: one small transformer block, the same bytes on every machine, and beside it
//! everything that is awkward about tensors: many dtypes, odd and empty shapes, every kind of float.

use comm_core::tensor::DType;
use half::{bf16, f16};

use super::weights::Spec;

const WIDTH: usize = 192;
const HIDDEN: usize = 4 * WIDTH;
const WORDS: usize = 1_003;
const POSITIONS: usize = 128;

/// A reproducible stream of 64-bit numbers (splitmix64: Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct Stream(u64);

impl Stream {
    /// The stream that starts at `start`.
    pub fn new(start: u64) -> Stream {
        Stream(start)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A weight in [-0.1, 0.1), exact in f32 before it is scaled.
    fn weight(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.2
    }
}

/// The tensors, each with its little-endian bytes.
pub fn tensors() -> Vec<(Spec, Vec<u8>)> {
    let mut block = Block { stream: Stream::new(1), tensors: Vec::new() };
    block.layers();
    block.oddities();
    block.tensors
}

struct Block {
    stream: Stream,
    tensors: Vec<(Spec, Vec<u8>)>,
}

impl Block {
    fn push(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>) {
        let spec = Spec { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes: bytes.len() as u64 };
        self.tensors.push((spec, bytes));
    }

    /// Weights as a trained layer has them: small, both signs.
    fn weights(&mut self, name: &str, dtype: DType, shape: &[usize]) {
        let n: usize = shape.iter().product();
        let mut bytes = Vec::new();
        for _ in 0..n {
            let weight = self.stream.weight();
            match dtype {
                DType::F16 => bytes.extend(f16::from_f32(weight).to_le_bytes()),
                DType::BF16 => bytes.extend(bf16::from_f32(weight).to_le_bytes()),
                DType::F64 => bytes.extend((f64::from(weight) / 3.0).to_le_bytes()),
                _ => bytes.extend(weight.to_le_bytes()),
            }
        }
        self.push(name, dtype, shape, bytes);
    }

    /// Any bit pattern at all.
    fn bits(&mut self, name: &str, dtype: DType, shape: &[usize]) {
        let n = shape.iter().product::<usize>() * dtype.size();
        let bytes = (0..n).map(|_| self.stream.next() as u8).collect();
        self.push(name, dtype, shape, bytes);
    }

    fn layers(&mut self) {
        self.weights("embeddings.words.weight", DType::F32, &[WORDS, WIDTH]);
        let positions = (0..POSITIONS as i64).flat_map(i64::to_le_bytes).collect();
        self.push("embeddings.position_ids", DType::I64, &[1, POSITIONS], positions);
        for part in ["query", "key", "value", "out"] {
            self.weights(&format!("attention.{part}.weight"), DType::F32, &[WIDTH, WIDTH]);
            self.weights(&format!("attention.{part}.bias"), DType::F32, &[WIDTH]);
        }
        self.weights("mlp.up.weight", DType::F16, &[HIDDEN, WIDTH]);
        self.weights("mlp.up.bias", DType::F16, &[HIDDEN]);
        self.weights("mlp.down.weight", DType::BF16, &[WIDTH, HIDDEN]);
        self.weights("mlp.down.bias", DType::BF16, &[WIDTH]);
        self.weights("norm.weight", DType::F64, &[WIDTH]);
        self.weights("norm.running", DType::F64, &[2, WIDTH]);
        let mask = (0..POSITIONS).map(|i| u8::from(i % 3 == 0)).collect();
        self.push("attention.mask", DType::U8, &[POSITIONS], mask);
    }

    fn oddities(&mut self) {
        self.bits("odd.i32", DType::I32, &[3, 1, 5]);
        self.bits("odd.i64", DType::I64, &[3]);
        self.bits("odd.u8", DType::U8, &[7, 5]);
        self.bits("odd.f32", DType::F32, &[7, 5]);
        self.bits("odd.f64", DType::F64, &[1, 1]);
        self.bits("odd.f16", DType::F16, &[5, 7]);
        self.bits("odd.bf16", DType::BF16, &[2]);
        self.push("empty.f32", DType::F32, &[0, WIDTH], Vec::new());
        self.push("empty.i64", DType::I64, &[3, 0], Vec::new());
        self.push("scalar.f32", DType::F32, &[], 0.125f32.to_le_bytes().to_vec());
        self.push("scalar.i32", DType::I32, &[], i32::MIN.to_le_bytes().to_vec());
        let limits: Vec<u8> = [i32::MIN, i32::MAX, -1, 0, 1].into_iter().flat_map(i32::to_le_bytes).collect();
        self.push("limits.i32", DType::I32, &[5], limits);
        let floats =
            specials(0x7f80_0000, 0x0040_0000, 32).into_iter().flat_map(|b| (b as u32).to_le_bytes());
        self.push("special.f32", DType::F32, &[7, 2], floats.collect());
        let doubles =
            specials(0x7ff0_0000_0000_0000, 0x0008_0000_0000_0000, 64).into_iter().flat_map(u64::to_le_bytes);
        self.push("special.f64", DType::F64, &[2, 7], doubles.collect());
    }
}

/// The 14 bit patterns that float code gets wrong most easily, given infinity's bits and a NaN's quiet bit.
fn specials(infinity: u64, quiet: u64, width: u32) -> [u64; 14] {
    let sign = 1 << (width - 1);
    [
        0,
        sign, // -0.0
        1,    // the smallest subnormal
        sign | 1,
        (quiet << 1) - 1, // the largest subnormal
        quiet << 1,       // the smallest normal
        infinity - 1,     // the largest finite number
        sign | (infinity - 1),
        infinity,
        sign | infinity,
        infinity | quiet,          // a quiet NaN
        infinity | quiet | 0x1234, // with a payload
        infinity | 0x5678,         // a signalling NaN
        sign | infinity | quiet | 0x9abc,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_every_time() {
        assert!(tensors() == tensors());
        let sum = tensors()
            .iter()
            .flat_map(|(_, b)| b)
            .fold(0u64, |sum, &b| sum.wrapping_mul(31).wrapping_add(b.into()));
        assert_eq!(sum, SUM, "the block changed; its numbers in reports can no longer be compared");
    }

    const SUM: u64 = 10_057_812_706_739_703_991;

    #[test]
    fn it_holds_what_is_awkward() {
        let all = tensors();
        for (spec, bytes) in &all {
            let n: usize = spec.shape.iter().product();
            assert_eq!(bytes.len(), n * spec.dtype.size(), "{spec}");
        }
        let floats = |name: &str| -> Vec<f32> {
            let (_, bytes) = all.iter().find(|(spec, _)| spec.name == name).unwrap();
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let special = floats("special.f32");
        assert_eq!(special.iter().filter(|x| x.is_nan()).count(), 4);
        assert_eq!(special.iter().filter(|x| x.is_infinite()).count(), 2);
        assert_eq!(special.iter().filter(|x| x.is_subnormal()).count(), 3);
        assert!(special[1] == 0.0 && special[1].is_sign_negative());
        assert_eq!((special[5], special[6]), (f32::MIN_POSITIVE, f32::MAX));
        assert!(floats("attention.query.weight").iter().all(|x| x.abs() <= 0.1));
        let has = |f: &dyn Fn(&Spec) -> bool| all.iter().any(|(spec, _)| f(spec));
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8] {
            assert!(has(&|s| s.dtype == dtype), "{dtype}");
        }
        assert!(has(&|s| s.bytes == 0) && has(&|s| s.shape.is_empty()) && has(&|s| s.shape == [1, 1]));
    }
}
