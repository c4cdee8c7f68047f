// One trace as its tensor-parallel ranks: each rank is a stream and a recording of its share of the heads.
#include "gdnsim/error.hpp"
#include "gdnsim/ranks.hpp"
#include "gdnsim/stream_view.hpp"
#include "trace/rank_heads.hpp"
#include "trace/recording_copy.hpp"

namespace gdnsim {
namespace {

using namespace ranks;

Model share_of(const Model& whole, int ranks, const std::string& where) {
  if (whole.H % ranks != 0)
    throw error(where, ": expected a number of ranks that divides ", whole.H, " key heads and ", whole.HV,
                " value heads, found ", ranks);
  Model rank = whole;
  rank.H /= ranks, rank.HV /= ranks;
  rank.block_stride = rank.conv_block_stride = 0;  // of the whole's pool
  return rank;
}

/// Which share of what.
struct Share {
  Model model;
  std::size_t rank, ranks;
  Bytes cut(const Parts& parts, const Bytes& whole) const { return gdnsim::ranks::cut(parts, whole, rank, ranks); }
  Bytes state(const Bytes& whole) const {
    return cut(value_heads(model, model.state_bytes() / static_cast<std::size_t>(model.HV)), whole);
  }
  Bytes conv(const Bytes& whole) const { return cut(channels(model, size_of(model.conv_state_dtype)), whole); }
  std::vector<float> values(const std::vector<float>& whole) const {
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(rank) * model.HV;
    return {first, first + model.HV};
  }
};

LayerParams params_of(const Share& share, const LayerParams& whole) {
  const std::size_t word = size_of(share.model.act_dtype);
  LayerParams rank = whole;
  rank.A_log = share.values(whole.A_log);
  rank.dt_bias = share.values(whole.dt_bias);
  rank.conv_weight =
      share.cut(channels(share.model, word * static_cast<std::size_t>(share.model.W)), whole.conv_weight);
  rank.conv_bias = share.cut(channels(share.model, word), whole.conv_bias);
  return rank;
}

class RankStream final : public StreamView {
 public:
  RankStream(Stream& whole, const Share& share) : StreamView(whole), share_(share) {
    for (int layer = 0; layer < share.model.layers(); ++layer) params_.push_back(params_of(share, whole.params(layer)));
  }
  const Model& model() const override { return share_.model; }
  const LayerParams& params(int layer) const override { return params_[static_cast<std::size_t>(layer)]; }
  void inputs(std::int64_t step, int layer, StepInputs& out) override {
    const std::size_t word = size_of(share_.model.act_dtype);
    StreamView::inputs(step, layer, out);
    out.mixed_qkv = share_.cut(channels(share_.model, word), out.mixed_qkv);
    out.a = share_.cut(value_heads(share_.model, word), out.a);
    out.b = share_.cut(value_heads(share_.model, word), out.b);
    out.z = share_.cut(value_heads(share_.model, word * static_cast<std::size_t>(share_.model.V)), out.z);
  }
  void load_row(std::int32_t source, Bytes& recurrent, Bytes& conv) override {
    StreamView::load_row(source, recurrent, conv);
    recurrent = share_.state(recurrent), conv = share_.conv(conv);
  }

 private:
  const Share share_;
  std::vector<LayerParams> params_;
};

/// Taps and snapshots of one rank.
class RankRecording final : public RecordedShare {
 public:
  RankRecording(Recording& whole, const Share& share) : whole_(whole), share_(share) {}
  void tap(Tap tap, std::int64_t step, int layer, Bytes& out) override {
    whole_.read_tap(tap, step, layer, out);
    out = share_.cut(of_tap(share_.model, tap), out);
  }
  void snapshot(std::size_t at, Bytes& recurrent, Bytes& conv) override {
    whole_.read_snapshot(whole_.snapshots()[at], recurrent, conv);
    recurrent = share_.state(recurrent), conv = share_.conv(conv);
  }

 private:
  Recording& whole_;
  const Share share_;
};

}  // namespace

void split_ranks(const std::string& path, const std::vector<std::string>& paths, const RankOptions& options) {
  const std::unique_ptr<Trace> trace = open_trace(path);
  const int count = static_cast<int>(paths.size());
  const Model model = share_of(trace->model(), count, path);
  for (std::size_t rank = 0; rank < paths.size(); ++rank) {
    const Share share{model, rank, paths.size()};
    RankStream stream(*trace, share);
    RankRecording recording(*trace, share);
    TraceHeader header = header_like(stream, *trace);
    header.provenance = without_ranks(trace->provenance());
    header.provenance.emplace_back(kRankAttribute, std::to_string(rank));
    header.provenance.emplace_back(kRanksAttribute, std::to_string(count));
    const std::int64_t total = trace->steps() * count, before = trace->steps() * static_cast<std::int64_t>(rank);
    write_share(paths[rank], header, stream, recording, options.force, [&](std::int64_t done) {
      if (options.progress) options.progress(before + done, total);
    });
  }
}

}  // namespace gdnsim
