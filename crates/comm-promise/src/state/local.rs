//! The value where it lies in the home process, from whoever sets it there to whoever reads it: once.

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use comm_core::wait::{Bell, Cell};

use super::{HOME, Word, begin, finish};

/// What there is of the value in this process.
#[derive(Debug)]
pub(crate) struct Local<T>(Mutex<Inside<T>>);

#[derive(Debug)]
struct Inside<T> {
    /// Set here, or about to be, and not read.
    value: Option<T>,
    /// Whether the future has got what it ends with. One that was given up while the value was put there has not got that: it
    /// goes back to whoever sets it.
    consumed: bool,
}

impl<T> Default for Local<T> {
    fn default() -> Local<T> {
        Local(Mutex::new(Inside { value: None, consumed: false }))
    }
}

impl<T> Local<T> {
    /// Sets a promise, for a holder of this process.
    ///
    /// # Errors
    /// The value, and what the word is instead.
    pub(crate) fn set(
        &self,
        cell: &Cell,
        generation: u64,
        value: T,
        bell: &impl Bell,
    ) -> Result<(), (T, Word)> {
        if let Err(word) = begin(cell, generation, HOME) {
            return Err((value, word));
        }
        self.put(value);
        self.finish(cell, generation, bell)
    }

    /// Puts the value where it is to be read; it is not set yet.
    pub(crate) fn put(&self, value: T) {
        self.lock().value = Some(value);
    }

    /// Sets the promise to the value that has been put there.
    pub(crate) fn finish(&self, cell: &Cell, generation: u64, bell: &impl Bell) -> Result<(), (T, Word)> {
        let Err(word) = finish(cell, generation, HOME, bell) else { return Ok(()) };
        // Given up meanwhile: nobody has taken it, since only what is set is taken.
        match self.lock().value.take() {
            Some(value) => Err((value, word)),
            None => Ok(()),
        }
    }

    /// Whether the future has got what it ends with.
    pub(crate) fn is_consumed(&self) -> bool {
        self.lock().consumed
    }

    /// For the future, which gets what it ends with; `None` if it has got that. No other reads until this is dropped.
    pub(crate) fn read(&self) -> Option<Reading<'_, T>> {
        let inside = self.lock();
        if inside.consumed { None } else { Some(Reading(inside)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inside<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future that reads.
pub(crate) struct Reading<'a, T>(MutexGuard<'a, Inside<T>>);

impl<T> Reading<'_, T> {
    /// What was set here.
    pub(crate) fn value(&mut self) -> Option<T> {
        self.0.value.take()
    }

    /// It has got what it ends with.
    pub(crate) fn consume(mut self) {
        self.0.consumed = true;
    }
}
