// What a state may be turned into: a shifted window, a transposed or rounded state. Private to explain.
#pragma once

#include <functional>
#include <string>

#include "explain/twist.hpp"

namespace gdnsim::explaining {

/// Changes a block's words.
using Edit = std::function<void(const Model&, Words&)>;

/// What comes in at the end of a window that is shifted.
enum class Fill : std::uint8_t { zero, edge, rotate };
inline constexpr Fill kFills[] = {Fill::zero, Fill::edge, Fill::rotate};

/// Column j takes what stood in column j + by.
void shift_window(const Model& model, Bytes& conv, int by, Fill fill);
/// "2 columns too early": what a window shifted by so many is.
std::string columns(int by);
/// Each head's [V, K] as [K, V]; of a model with K = V.
void transpose_heads(const Model& model, Words& words);
/// An f32 recurrent state rounded to bf16.
void round_state(const Model& model, Words& words);

}  // namespace gdnsim::explaining
