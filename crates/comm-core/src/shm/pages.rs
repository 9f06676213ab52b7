//! Which parts of an arena's segment have memory: reserved from the system, in use, known to be zero.
//!
//! Memory is reserved in chunks (1 MiB, less under a small limit), so that a hundred thousand small blocks do not
//! cost as many system calls. All of this is private memory; nothing is read back from the segment.

use std::ops::Range;

#[derive(Debug, Clone, Copy, Default)]
struct Chunk {
    /// Blocks that lie in it, wholly or partly.
    live: u32,
    /// The system has given memory for it.
    reserved: bool,
    /// Nobody has had it since the system gave it, so it is zero.
    clean: bool,
}

/// The chunks of one segment.
#[derive(Debug)]
pub(super) struct Pages {
    len: u64,
    chunk: u64,
    chunks: Vec<Chunk>,
    reserved: u64,
    idle: u64,
}

impl Pages {
    /// A sparse segment of `len` bytes in chunks of `chunk`; the last one may be shorter.
    pub(super) fn new(len: u64, chunk: u64) -> Pages {
        let chunks = vec![Chunk::default(); len.div_ceil(chunk) as usize];
        Pages { len, chunk, chunks, reserved: 0, idle: 0 }
    }

    /// Bytes that the system has given.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of reserved chunks in which there is no block.
    pub(super) fn idle(&self) -> u64 {
        self.idle
    }

    /// Whether all of a range has memory.
    pub(super) fn is_reserved(&self, offset: u64, len: u64) -> bool {
        self.chunks[self.touched(offset, len)].iter().all(|c| c.reserved)
    }

    /// The chunks that a range touches and that have no memory, as ranges of bytes.
    pub(super) fn missing(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        self.runs(self.touched(offset, len), |c| !c.reserved)
    }

    /// The system has given memory for these ranges, which [`Pages::missing`] had named.
    pub(super) fn add(&mut self, runs: &[Range<u64>]) {
        for run in runs {
            for i in self.touched(run.start, run.end - run.start) {
                let size = self.size(i);
                self.chunks[i].reserved = true;
                self.chunks[i].clean = true;
                self.reserved += size;
                if self.chunks[i].live == 0 {
                    self.idle += size;
                }
            }
        }
    }

    /// A block takes a range.
    pub(super) fn hold(&mut self, offset: u64, len: u64) {
        for i in self.touched(offset, len) {
            if self.chunks[i].live == 0 && self.chunks[i].reserved {
                self.idle -= self.size(i);
            }
            self.chunks[i].live += 1;
        }
    }

    /// A block leaves its range.
    pub(super) fn let_go(&mut self, offset: u64, len: u64) {
        for i in self.touched(offset, len) {
            self.chunks[i].live -= 1;
            if self.chunks[i].live == 0 && self.chunks[i].reserved {
                self.idle += self.size(i);
            }
        }
    }

    /// The parts of a range that may be other than zero.
    pub(super) fn dirty(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let mut dirty = self.runs(self.touched(offset, len), |c| !c.clean);
        for run in &mut dirty {
            *run = run.start.max(offset)..run.end.min(offset + len);
        }
        dirty
    }

    /// All of a range may be other than zero from now on.
    pub(super) fn soil(&mut self, offset: u64, len: u64) {
        let touched = self.touched(offset, len);
        for chunk in &mut self.chunks[touched] {
            chunk.clean = false;
        }
    }

    /// Takes up to `most` bytes of idle chunks out, from the end, and names them: their memory is to go back.
    pub(super) fn take_idle(&mut self, most: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut left = most;
        for i in (0..self.chunks.len()).rev() {
            if left == 0 || self.idle == 0 {
                break;
            }
            if self.chunks[i].live > 0 || !self.chunks[i].reserved {
                continue;
            }
            let size = self.size(i);
            if size > left {
                break;
            }
            left -= size;
            self.chunks[i] = Chunk::default();
            self.reserved -= size;
            self.idle -= size;
            let start = i as u64 * self.chunk;
            match runs.last_mut() {
                Some(run) if run.start == start + size => run.start = start,
                _ => runs.push(start..start + size),
            }
        }
        runs
    }

    /// The system did not take a range back: it still has memory, of any content.
    pub(super) fn put_back(&mut self, run: Range<u64>) {
        self.add(std::slice::from_ref(&run));
        for i in self.touched(run.start, run.end - run.start) {
            self.chunks[i].clean = false;
        }
    }

    fn touched(&self, offset: u64, len: u64) -> Range<usize> {
        (offset / self.chunk) as usize..(offset + len).div_ceil(self.chunk) as usize
    }

    fn size(&self, i: usize) -> u64 {
        self.chunk.min(self.len - i as u64 * self.chunk)
    }

    fn runs(&self, chunks: Range<usize>, wanted: impl Fn(&Chunk) -> bool) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for i in chunks.filter(|i| wanted(&self.chunks[*i])) {
            let start = i as u64 * self.chunk;
            let end = start + self.size(i);
            match runs.last_mut() {
                Some(run) if run.end == start => run.end = end,
                _ => runs.push(start..end),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(list: &[(u64, u64)]) -> Vec<Range<u64>> {
        list.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn a_block_is_reserved_held_soiled_and_given_back() {
        let mut pages = Pages::new(950, 100);
        assert_eq!(pages.missing(150, 300), runs(&[(100, 500)]));
        pages.hold(150, 300);
        let missing = pages.missing(150, 300);
        pages.add(&missing);
        assert!(pages.is_reserved(150, 300) && !pages.is_reserved(50, 100));
        assert_eq!((pages.reserved(), pages.idle()), (400, 0));
        assert_eq!(pages.dirty(150, 300), [], "fresh memory is zero");
        pages.soil(150, 300);

        // A second block shares the chunk in which the first one ends, and goes on into the short last chunk.
        pages.hold(450, 500);
        assert_eq!(pages.missing(450, 500), runs(&[(500, 950)]));
        pages.add(&runs(&[(500, 950)]));
        assert_eq!(pages.dirty(450, 500), runs(&[(450, 500)]), "only the shared chunk is dirty");

        pages.let_go(150, 300);
        assert_eq!(pages.idle(), 300, "the shared chunk is not idle");
        assert_eq!(pages.take_idle(250), runs(&[(200, 400)]));
        assert_eq!((pages.reserved(), pages.idle()), (650, 100));
        pages.let_go(450, 500);
        assert_eq!(pages.take_idle(u64::MAX), runs(&[(400, 950), (100, 200)]));
        assert_eq!((pages.reserved(), pages.idle()), (0, 0));
        assert_eq!(pages.take_idle(u64::MAX), []);
    }

    #[test]
    fn what_the_system_does_not_take_is_dirty() {
        let mut pages = Pages::new(400, 100);
        pages.add(&runs(&[(0, 400)]));
        let taken = pages.take_idle(200);
        assert_eq!(taken, runs(&[(200, 400)]));
        pages.put_back(taken[0].clone());
        assert_eq!((pages.reserved(), pages.idle()), (400, 400));
        pages.hold(100, 200);
        assert_eq!(pages.dirty(100, 200), runs(&[(200, 300)]));
    }
}
