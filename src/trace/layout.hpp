// Shapes and rules of a trace file that its reader and its writer share.
#pragma once

#include <string>

#include "file/hdf5_io.hpp"
#include "gdnsim/trace.hpp"

namespace gdnsim {

/// The axes of one row's tap in a file, without the leading ones: [dim], [H, K], [HV] or [HV, V].
h5::Dims tap_axes(Tap tap, const Model& model);
/// `first` followed by `rest`.
h5::Dims joined(h5::Dims first, const h5::Dims& rest);
/// One block: [HV, V, K] and [W-1, dim].
h5::Dims state_axes(const Model& model);
h5::Dims conv_axes(const Model& model);

/// Taps that /recorded/<l> can hold: all but the two states, which are snapshots.
bool recordable(Tap tap);

/// Index of the first NaN among raw words of `type`, or -1.
std::int64_t first_nan(std::span<const std::byte> words, DType type);
/// Throws Error naming the dataset and the index of a NaN in one layer's parameters; `where` is the group, "file: /params/0".
void refuse_nan(const LayerParams& params, const Model& model, const std::string& where);
/// Throws Error when a snapshot's step, layer or block is out of range; `where` is "file: /recorded/state".
void validate_snapshots(const Model& model, std::int64_t steps, std::span<const Snapshot> snapshots,
                        const std::string& where);

}  // namespace gdnsim
