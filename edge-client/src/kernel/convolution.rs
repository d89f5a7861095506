//! Convolutions and pooling, in one and two dimensions, on the kernels of [`dense`].
//!
//! An image is height x width x channels values, row-major, the channels of a pixel side by side; a signal is an image
//! of height one. What a filter sees of an image, a *patch*, becomes a row of a batch, and the filters are the outputs of
//! a dense layer. So a layer of filters is (patch + 1) x filters values with the bias in the last row, its outputs are
//! an image with the filters as channels, and its step is [`dense::descend`] on the patches.
//!
//! A network takes images one at a time, and of each a few rows ([`Convolution::strip`]), so that their patches are all the
//! memory it needs; the bits are those of a whole batch. Batches are images one after another. Where lengths do not fit,
//! whole images that all slices have are worked on; nothing panics.

use super::dense;

/// Filters that move over an image without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Rows of the image: one for a signal.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Values of a pixel.
    pub channels: usize,
    /// Rows that a filter sees.
    pub rows: usize,
    /// Pixels of each that it sees.
    pub columns: usize,
    /// How many pixels it moves on, both ways; zero counts as one.
    pub stride: usize,
    /// How many there are.
    pub filters: usize,
}

impl Convolution {
    /// Rows of the output; none if a filter is higher than the image.
    #[must_use]
    pub const fn out_height(&self) -> usize {
        places(self.height, self.rows, self.stride)
    }

    /// Pixels of an output's row; none if a filter is wider than the image.
    #[must_use]
    pub const fn out_width(&self) -> usize {
        places(self.width, self.columns, self.stride)
    }

    /// Patches of an image, and pixels of the output.
    #[must_use]
    pub const fn positions(&self) -> usize {
        self.out_height() * self.out_width()
    }

    /// Values of a patch.
    #[must_use]
    pub const fn patch(&self) -> usize {
        self.rows * self.columns * self.channels
    }

    /// Values of an image.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Values of an output.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.positions() * self.filters
    }

    /// Values of the layer, (patch + 1) x filters.
    #[must_use]
    pub const fn layer(&self) -> usize {
        (self.patch() + 1) * self.filters
    }

    /// What makes `count` rows of the output, from one row of it on: they are an image of their own, of fewer rows.
    #[must_use]
    pub const fn strip(&self, count: usize) -> Self {
        Self { height: count.saturating_sub(1) * step(self.stride) + self.rows, ..*self }
    }

    /// Where in an image the rows of its patches start, patch by patch, and how long they are.
    fn runs(self) -> (impl Iterator<Item = usize>, usize) {
        let line = self.width * self.channels;
        let step = step(self.stride);
        let corner = move |y: usize, x: usize| y * step * line + x * step * self.channels;
        let patches =
            (0..self.out_height()).flat_map(move |y| (0..self.out_width()).map(move |x| corner(y, x)));
        let starts = patches.flat_map(move |corner| (0..self.rows).map(move |row| corner + row * line));
        (starts, self.columns * self.channels)
    }

    /// The patches of `images` (n x inputs), n x positions x patch.
    pub fn patches(&self, images: &[f32], patches: &mut [f32]) {
        let (image, patch) = (self.inputs().max(1), (self.positions() * self.patch()).max(1));
        for (image, patches) in images.chunks_exact(image).zip(patches.chunks_exact_mut(patch)) {
            let (starts, length) = self.runs();
            for (patch, start) in patches.chunks_exact_mut(length.max(1)).zip(starts) {
                let run = image.get(start..start + length).unwrap_or_default();
                for (value, input) in patch.iter_mut().zip(run) {
                    *value = *input;
                }
            }
        }
    }

    /// Adds patches (n x positions x patch) to where they lie in `images` (n x inputs): the transpose of
    /// [`Convolution::patches`]. Sums run by position, ascending.
    pub fn add_patches(&self, patches: &[f32], images: &mut [f32]) {
        let (image, patch) = (self.inputs().max(1), (self.positions() * self.patch()).max(1));
        for (image, patches) in images.chunks_exact_mut(image).zip(patches.chunks_exact(patch)) {
            let (starts, length) = self.runs();
            for (patch, start) in patches.chunks_exact(length.max(1)).zip(starts) {
                let run = image.get_mut(start..start + length).unwrap_or_default();
                for (sum, value) in run.iter_mut().zip(patch) {
                    *sum += value;
                }
            }
        }
    }

    /// What the filters make of `images` (n x inputs): `out` receives n x outputs, `patches` what
    /// [`Convolution::patches`] does.
    pub fn forward(&self, images: &[f32], layer: &[f32], patches: &mut [f32], out: &mut [f32]) {
        self.patches(images, patches);
        dense::forward(patches, layer, self.filters, out);
    }

    /// Adds the errors of the inputs, from those of the outputs (`delta`, n x outputs), to `images` (n x inputs): those
    /// of a ReLU before them are not masked yet ([`dense::relu_errors`]). `errors`, of n x positions x patch values, is a
    /// buffer.
    pub fn add_errors(&self, delta: &[f32], layer: &[f32], errors: &mut [f32], images: &mut [f32]) {
        dense::backward_linear(delta, layer, self.filters, errors);
        self.add_patches(errors, images);
    }
}

/// The largest value of each channel in windows side by side, of at most 256 pixels. What is left at the edges is not
/// looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPooling {
    /// Rows of the image: one for a signal.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Values of a pixel.
    pub channels: usize,
    /// Rows of a window.
    pub rows: usize,
    /// Pixels of a window's row.
    pub columns: usize,
}

impl MaxPooling {
    /// Rows of the output.
    #[must_use]
    pub const fn out_height(&self) -> usize {
        places(self.height, self.rows, self.rows)
    }

    /// Pixels of an output's row.
    #[must_use]
    pub const fn out_width(&self) -> usize {
        places(self.width, self.columns, self.columns)
    }

    /// Values of an image.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Values of an output.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.out_height() * self.out_width() * self.channels
    }

    /// The largest values of `images` (n x inputs): `out` receives n x outputs, `kept` which of its window's values each
    /// was, counted row by row from zero. Of equal values it is the first; a NaN is larger than anything, so that it is
    /// not lost.
    pub fn forward(&self, images: &[f32], out: &mut [f32], kept: &mut [u8]) {
        let (image, pooled) = (self.inputs().max(1), self.outputs().max(1));
        let channels = self.channels.max(1);
        let outputs = out.chunks_exact_mut(pooled).zip(kept.chunks_exact_mut(pooled));
        for (image, (out, kept)) in images.chunks_exact(image).zip(outputs) {
            let pixels = out.chunks_exact_mut(channels).zip(kept.chunks_exact_mut(channels));
            for (pixel, (out, kept)) in pixels.enumerate() {
                for (number, start) in (0..=u8::MAX).zip(self.window(pixel)) {
                    let values = image.get(start..start + channels).unwrap_or_default();
                    let first = number == 0;
                    for ((out, kept), &value) in out.iter_mut().zip(kept.iter_mut()).zip(values) {
                        // No branches: this is as many comparisons as there are values.
                        let larger = first | (value > *out) | (value.is_nan() & !out.is_nan());
                        *out = select(larger, value, *out);
                        let mask = u8::from(larger).wrapping_neg();
                        *kept = (number & mask) | (*kept & !mask);
                    }
                }
            }
        }
    }

    /// Errors of the inputs, from those of the outputs (`delta`, n x outputs): what was kept gets them, the rest
    /// zero. `out` receives n x inputs.
    pub fn backward(&self, delta: &[f32], kept: &[u8], out: &mut [f32]) {
        let (image, pooled) = (self.inputs().max(1), self.outputs().max(1));
        let channels = self.channels.max(1);
        let outputs = delta.chunks_exact(pooled).zip(kept.chunks_exact(pooled));
        out.fill(0.0);
        for (image, (delta, kept)) in out.chunks_exact_mut(image).zip(outputs) {
            for (pixel, (delta, kept)) in
                delta.chunks_exact(channels).zip(kept.chunks_exact(channels)).enumerate()
            {
                for (number, start) in (0..=u8::MAX).zip(self.window(pixel)) {
                    let errors = image.get_mut(start..start + channels).unwrap_or_default();
                    for ((error, delta), &kept) in errors.iter_mut().zip(delta).zip(kept) {
                        if kept == number {
                            *error = *delta;
                        }
                    }
                }
            }
        }
    }

    /// Where in an image the pixels of the window begin of which output pixel `pixel` is the largest, row by row.
    fn window(&self, pixel: usize) -> impl Iterator<Item = usize> {
        let Self { width, channels, rows, columns, .. } = *self;
        let across = self.out_width().max(1);
        let (y, x) = (pixel / across * rows, pixel % across * columns);
        (y..y + rows)
            .flat_map(move |row| (x..x + columns).map(move |column| (row * width + column) * channels))
    }
}

/// One of two values, by their bits: what a compiler makes vectors of.
fn select(first: bool, one: f32, other: f32) -> f32 {
    let mask = u32::from(first).wrapping_neg();
    f32::from_bits((one.to_bits() & mask) | (other.to_bits() & !mask))
}

/// How far a window moves on.
const fn step(stride: usize) -> usize {
    if stride == 0 { 1 } else { stride }
}

/// How often a window of `size` fits in `length` when it moves on by `stride`.
const fn places(length: usize, size: usize, stride: usize) -> usize {
    match length.checked_sub(size) {
        Some(rest) if size > 0 => rest / step(stride) + 1,
        _ => 0,
    }
}
