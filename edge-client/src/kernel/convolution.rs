//! Convolutional layers and max pooling, in one and two dimensions, built on the kernels of [`dense`].
//!
//! An image is height x width x channels values, row-major, with the channels of a pixel adjacent; a signal
//! is an image of height one. The input window of a filter is called a *patch*. Each patch is one row of a
//! batch, and the filters are the outputs of a dense layer. A convolutional layer therefore has (patch + 1) x
//! filters values with the bias in the last row, its output is an image with the filters as channels, and its
//! SGD step is [`dense::descend`] on the patches.
//!
//! A network processes one image at a time, and a few rows of the image at a time ([`Convolution::strip`]),
//! so that only the patches of these rows need memory; the results are bit-identical to those of a whole
//! batch. Batches are consecutive images. If lengths do not match, the functions process the whole images
//! that all slices contain; nothing panics.

use super::dense;
use crate::pace::Pace;

/// Convolution without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Number of rows of the image; one for a signal.
    pub height: usize,
    /// Number of pixels in a row.
    pub width: usize,
    /// Number of values of a pixel.
    pub channels: usize,
    /// Height of a filter, in rows.
    pub rows: usize,
    /// Width of a filter, in pixels.
    pub columns: usize,
    /// Stride in both directions, in pixels; zero counts as one.
    pub stride: usize,
    /// Number of filters.
    pub filters: usize,
}

impl Convolution {
    /// Returns the number of rows of the output; 0 if a filter is higher than the image.
    #[must_use]
    pub const fn out_height(&self) -> usize {
        count_positions(self.height, self.rows, self.stride)
    }

    /// Returns the number of pixels in a row of the output; 0 if a filter is wider than the image.
    #[must_use]
    pub const fn out_width(&self) -> usize {
        count_positions(self.width, self.columns, self.stride)
    }

    /// Returns the number of patches of an image, which are the pixels of the output.
    #[must_use]
    pub const fn positions(&self) -> usize {
        self.out_height() * self.out_width()
    }

    /// Returns the number of values of a patch.
    #[must_use]
    pub const fn patch(&self) -> usize {
        self.rows * self.columns * self.channels
    }

    /// Returns the number of values of an image.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Returns the number of values of an output.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.positions() * self.filters
    }

    /// Returns the number of values of the layer, (patch + 1) x filters.
    #[must_use]
    pub const fn layer(&self) -> usize {
        (self.patch() + 1) * self.filters
    }

    /// Returns the convolution that computes `count` rows of the output from the part of the image that they
    /// depend on.
    #[must_use]
    pub const fn strip(&self, count: usize) -> Self {
        Self { height: count.saturating_sub(1) * step_size(self.stride) + self.rows, ..*self }
    }

    /// Returns the start of a patch in an image.
    #[cfg(all(feature = "wide", not(target_os = "none")))]
    pub(super) fn start(&self, position: usize) -> usize {
        let across = self.out_width().max(1);
        let (y, x) = (position / across, position % across);
        (y * self.width + x) * step_size(self.stride) * self.channels
    }

    /// Returns the start of each row of each patch in an image, patch by patch, and the length of such a row
    /// in values.
    fn runs(self) -> (impl Iterator<Item = usize>, usize) {
        let line = self.width * self.channels;
        let step = step_size(self.stride);
        let corner = move |y: usize, x: usize| y * step * line + x * step * self.channels;
        let patches =
            (0..self.out_height()).flat_map(move |y| (0..self.out_width()).map(move |x| corner(y, x)));
        let starts = patches.flat_map(move |corner| (0..self.rows).map(move |row| corner + row * line));
        (starts, self.columns * self.channels)
    }

    /// Copies the patches of `images` (n x inputs) into `patches`, n x positions x patch.
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

    /// Adds patches (n x positions x patch) to their positions in `images` (n x inputs): the transpose of
    /// [`Convolution::patches`]. Sums run in ascending order of positions.
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

    /// Applies the filters to `images` (n x inputs): `out` receives n x outputs, and `patches` the result of
    /// [`Convolution::patches`].
    pub fn forward(
        &self,
        images: &[f32],
        layer: &[f32],
        patches: &mut [f32],
        out: &mut [f32],
        pace: Pace<'_>,
    ) {
        self.patches(images, patches);
        dense::forward(patches, layer, self.filters, out, pace);
    }

    /// Computes the errors of the inputs from the errors of the outputs (`delta`, n x outputs), and adds them
    /// to `images` (n x inputs). The caller masks a ReLU before the layer ([`dense::relu_errors`]). `errors`
    /// is scratch memory of n x positions x patch values.
    pub fn add_errors(
        &self,
        delta: &[f32],
        layer: &[f32],
        errors: &mut [f32],
        images: &mut [f32],
        pace: Pace<'_>,
    ) {
        dense::backward_linear(delta, layer, self.filters, errors, pace);
        self.add_patches(errors, images);
    }
}

/// Max pooling: the largest value of each channel in adjacent windows of at most 256 pixels. Pixels at the
/// edges that do not fill a window are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPooling {
    /// Number of rows of the image; one for a signal.
    pub height: usize,
    /// Number of pixels in a row.
    pub width: usize,
    /// Number of values of a pixel.
    pub channels: usize,
    /// Height of a window, in rows.
    pub rows: usize,
    /// Width of a window, in pixels.
    pub columns: usize,
}

impl MaxPooling {
    /// Returns the number of rows of the output.
    #[must_use]
    pub const fn out_height(&self) -> usize {
        count_positions(self.height, self.rows, self.rows)
    }

    /// Returns the number of pixels in a row of the output.
    #[must_use]
    pub const fn out_width(&self) -> usize {
        count_positions(self.width, self.columns, self.columns)
    }

    /// Returns the number of values of an image.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Returns the number of values of an output.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.out_height() * self.out_width() * self.channels
    }

    /// Pools `images` (n x inputs): `out` receives the maxima, n x outputs, and `pool_indices` their indices
    /// in the windows, counted row by row from zero. The first of equal values is chosen; a NaN counts as the
    /// largest value, so that it reaches the output.
    pub fn forward(&self, images: &[f32], out: &mut [f32], pool_indices: &mut [u8]) {
        let (image, pooled) = (self.inputs().max(1), self.outputs().max(1));
        let channels = self.channels.max(1);
        let outputs = out.chunks_exact_mut(pooled).zip(pool_indices.chunks_exact_mut(pooled));
        for (image, (out, pool_indices)) in images.chunks_exact(image).zip(outputs) {
            let pixels = out.chunks_exact_mut(channels).zip(pool_indices.chunks_exact_mut(channels));
            for (pixel, (out, pool_indices)) in pixels.enumerate() {
                for (number, start) in (0..=u8::MAX).zip(self.window(pixel)) {
                    let values = image.get(start..start + channels).unwrap_or_default();
                    let first = number == 0;
                    for ((out, index), &value) in out.iter_mut().zip(pool_indices.iter_mut()).zip(values) {
                        // Written without branches, so that every value takes the same work.
                        let larger = first | (value > *out) | (value.is_nan() & !out.is_nan());
                        *out = select_value(larger, value, *out);
                        let mask = u8::from(larger).wrapping_neg();
                        *index = (number & mask) | (*index & !mask);
                    }
                }
            }
        }
    }

    /// Propagates errors back: the inputs that were maxima get the errors of the outputs (`delta`, n x
    /// outputs), all other inputs get zero. `out` receives n x inputs.
    pub fn backward(&self, delta: &[f32], pool_indices: &[u8], out: &mut [f32]) {
        let (image, pooled) = (self.inputs().max(1), self.outputs().max(1));
        let channels = self.channels.max(1);
        let outputs = delta.chunks_exact(pooled).zip(pool_indices.chunks_exact(pooled));
        out.fill(0.0);
        for (image, (delta, pool_indices)) in out.chunks_exact_mut(image).zip(outputs) {
            for (pixel, (delta, pool_indices)) in
                delta.chunks_exact(channels).zip(pool_indices.chunks_exact(channels)).enumerate()
            {
                for (number, start) in (0..=u8::MAX).zip(self.window(pixel)) {
                    let errors = image.get_mut(start..start + channels).unwrap_or_default();
                    for ((error, delta), &index) in errors.iter_mut().zip(delta).zip(pool_indices) {
                        put_if(index == number, *delta, error);
                    }
                }
            }
        }
    }

    /// Returns the index of each input pixel in the window of output pixel `pixel`, row by row.
    fn window(&self, pixel: usize) -> impl Iterator<Item = usize> {
        let Self { width, channels, rows, columns, .. } = *self;
        let across = self.out_width().max(1);
        let (y, x) = (pixel / across * rows, pixel % across * columns);
        (y..y + rows)
            .flat_map(move |row| (x..x + columns).map(move |column| (row * width + column) * channels))
    }
}

/// Returns `if_true` if `choose_first` is true, else `if_false`. Uses masks, which compilers vectorise.
fn select_value(choose_first: bool, if_true: f32, if_false: f32) -> f32 {
    let mask = u32::from(choose_first).wrapping_neg();
    f32::from_bits((if_true.to_bits() & mask) | (if_false.to_bits() & !mask))
}

/// Writes a value if `is_chosen` is true.
#[cfg(not(all(feature = "wide", not(target_os = "none"))))]
#[inline(always)]
fn put_if(is_chosen: bool, value: f32, target: &mut f32) {
    if is_chosen {
        *target = value;
    }
}

/// Writes a value if `is_chosen` is true. Without a branch, the values of several channels are written together.
#[cfg(all(feature = "wide", not(target_os = "none")))]
#[inline(always)]
fn put_if(is_chosen: bool, value: f32, target: &mut f32) {
    *target = select_value(is_chosen, value, *target);
}

/// Returns the stride, or one for a stride of zero.
const fn step_size(stride: usize) -> usize {
    if stride == 0 { 1 } else { stride }
}

/// Returns the number of positions of a window of `size` in `length` pixels with this `stride`.
const fn count_positions(length: usize, size: usize, stride: usize) -> usize {
    match length.checked_sub(size) {
        Some(remaining) if size > 0 => remaining / step_size(stride) + 1,
        _ => 0,
    }
}
