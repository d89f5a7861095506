//! Reader of stored numbers, in the order in which they were written.

/// Numbers that are still to be read.
pub struct Numbers<'a>(pub &'a [f64]);

impl<'a> Numbers<'a> {
    /// Next `count` numbers; `None`, and nothing read, if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<&'a [f64]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Next number.
    pub fn one(&mut self) -> Option<f64> {
        self.take(1)?.first().copied()
    }
}
