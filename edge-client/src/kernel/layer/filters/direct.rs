//! Forward pass of a convolution on a host, directly from the image: the sums of [`Convolution::forward`] without copies
//! of its patches.

use super::super::super::convolution::Convolution;
use super::super::super::dense::simd::Vector;
use super::super::super::dense::tiles::{Kernel, Tiles, add_products, cover, dispatch, load, store_tile};
use crate::pace::Pace;

/// Applies the filters to an image: `out` receives positions x filters values.
pub fn forward(convolution: Convolution, image: &[f32], layer: &[f32], out: &mut [f32], pace: Pace<'_>) {
    dispatch(Direct { convolution, image, layer, out, pace });
}

/// Convolution with its slices.
struct Direct<'a> {
    convolution: Convolution,
    image: &'a [f32],
    layer: &'a [f32],
    out: &'a mut [f32],
    pace: Pace<'a>,
}

impl Kernel for Direct<'_> {
    #[inline(always)]
    fn run<V: Vector, const ROWS: usize, const COUNT: usize, const WIDTH: usize>(mut self, v: V) {
        let Convolution { filters, .. } = self.convolution;
        let positions = 0..self.convolution.positions();
        if V::LANES >= 16 {
            // Processors with vectors of sixteen lanes have 32 registers.
            cover::<V, 6, 4>(&mut self, v, positions, filters);
        } else {
            cover::<V, ROWS, COUNT>(&mut self, v, positions, filters);
        }
    }
}

impl Tiles for Direct<'_> {
    #[inline(always)]
    fn tile<V: Vector, const R: usize, const C: usize>(
        &mut self,
        v: V,
        row: usize,
        column: usize,
    ) -> Option<()> {
        let Self { convolution, image, layer, ref mut out, pace } = *self;
        let Convolution { width, channels, rows, columns, filters, .. } = convolution;
        pace.spend(R * C * V::LANES * convolution.patch());
        let length = columns * channels;
        let mut images = [image; R];
        let mut r = 0;
        while r < R {
            images[r] = image.get(convolution.start(row + r)..)?;
            r += 1;
        }
        let bias = load::<V, C>(v, layer, convolution.patch() * filters + column)?;
        let mut sums = [bias; R];
        let mut weights = layer.get(column..)?;
        for y in 0..rows {
            let mut pixels = [&[][..]; R];
            let mut r = 0;
            while r < R {
                pixels[r] = images[r].get(y * width * channels..)?.get(..length)?;
                r += 1;
            }
            let mut i = 0;
            while i < length {
                let w = load(v, weights, 0)?;
                add_products(v, &mut sums, &pixels, i, &w)?;
                weights = weights.get(filters..)?;
                i += 1;
            }
        }
        store_tile(v, out, row * filters + column, filters, &sums)
    }
}
