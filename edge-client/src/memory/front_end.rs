//! Front end of a network: the layers before the dense layers.

#[cfg(feature = "convolution")]
use fedspan_protocol::limits::FILTERS_MAX;
#[cfg(feature = "convolution")]
use fedspan_protocol::message::{Filters, Image};

use crate::kernel::Layer;
#[cfg(feature = "convolution")]
use crate::kernel::convolution::{Convolution, MaxPooling};
#[cfg(feature = "recurrent")]
use crate::kernel::recurrent::Lstm;

/// Layers of a network before its dense layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrontEnd {
    /// No layers: the samples are the input of the first dense layer.
    #[default]
    Nothing,
    /// Frozen layer with a trainable low-rank adapter.
    #[cfg(feature = "adapter")]
    Adapter {
        /// Number of features: the length of a sample.
        features: usize,
        /// Rank r: the number of columns of the down-projection.
        rank: usize,
        /// Number of outputs of the layer.
        width: usize,
    },
    /// Convolutional layers on an image.
    #[cfg(feature = "convolution")]
    Filters {
        /// Sizes of a sample.
        image: Image,
        /// Layers in order; unused entries at the end have a count of zero.
        filters: [Filters; FILTERS_MAX],
    },
    /// LSTM over a sequence.
    #[cfg(feature = "recurrent")]
    Lstm(Lstm),
}

impl FrontEnd {
    /// Returns the number of layers.
    pub(super) const fn layers(&self) -> usize {
        match self {
            Self::Nothing => 0,
            #[cfg(feature = "adapter")]
            Self::Adapter { .. } => 2,
            #[cfg(feature = "convolution")]
            Self::Filters { filters, .. } => {
                let mut count = 0;
                while count < FILTERS_MAX && filters[count].count > 0 {
                    count += 1;
                }
                count
            }
            #[cfg(feature = "recurrent")]
            Self::Lstm(_) => 1,
        }
    }

    /// Returns layer number `layer` of the front end, counted from 0.
    pub(super) const fn layer(&self, layer: usize) -> Layer {
        let _ = layer;
        match self {
            Self::Nothing => Layer::Dense { inputs: 0, outputs: 0 },
            #[cfg(feature = "adapter")]
            Self::Adapter { features, rank, .. } if layer == 0 => {
                Layer::Down { inputs: *features, rank: *rank }
            }
            #[cfg(feature = "adapter")]
            Self::Adapter { rank, width, .. } => Layer::Up { rank: *rank, outputs: *width },
            #[cfg(feature = "convolution")]
            Self::Filters { image, filters } => {
                let mut size = [image.height as usize, image.width as usize, image.channels as usize];
                let mut before = 0;
                while before < layer && before < FILTERS_MAX {
                    let (_, pooling) = filters_on(size, filters[before]);
                    size = [pooling.out_height(), pooling.out_width(), pooling.channels];
                    before += 1;
                }
                if before == FILTERS_MAX {
                    return Layer::Dense { inputs: 0, outputs: 0 };
                }
                let (convolution, pooling) = filters_on(size, filters[before]);
                Layer::Filters { convolution, pooling }
            }
            #[cfg(feature = "recurrent")]
            Self::Lstm(lstm) => Layer::Lstm(*lstm),
        }
    }
}

/// Returns a convolutional layer on an image of `[height, width, channels]`.
#[cfg(feature = "convolution")]
const fn filters_on(image: [usize; 3], filters: Filters) -> (Convolution, MaxPooling) {
    let [height, width, channels] = image;
    let (side, pool) = (filters.side as usize, filters.pool as usize);
    // The windows of a signal, which has one row, have a height of one.
    let signal = height == 1;
    let convolution = Convolution {
        height,
        width,
        channels,
        rows: if signal { 1 } else { side },
        columns: side,
        stride: 1,
        filters: filters.count as usize,
    };
    let pooling = MaxPooling {
        height: convolution.out_height(),
        width: convolution.out_width(),
        channels: convolution.filters,
        rows: if signal { 1 } else { pool },
        columns: pool,
    };
    (convolution, pooling)
}
