// Every group, dataset and attribute name of both file formats (docs/trace-format.md, docs/log-format.md). A reader and its
// writer take their names from here, so they cannot drift apart.
#pragma once

#include <string_view>

namespace gdnsim::schema {

// Root attributes.
inline constexpr std::string_view kFormat = "format";
inline constexpr std::string_view kVersion = "version";
inline constexpr std::string_view kComplete = "complete";  // trace only: 1 once it was closed properly, written last
inline constexpr std::string_view kTraceFormat = "gdnsim-trace";
inline constexpr std::string_view kLogFormat = "gdnsim-log";
inline constexpr std::string_view kDriftFormat = "gdnsim-drift";  // the rest of its names: drift/layout.hpp
inline constexpr const char* kDriftSchema = "gdnsim.drift/1";     // of a sweep, which is JSON
inline constexpr int kTraceVersion = 2;
inline constexpr int kLogVersion = 2;

// /model, the same in both: attributes, then the one dataset.
inline constexpr std::string_view kModel = "model";
inline constexpr std::string_view kNumKHeads = "num_k_heads";
inline constexpr std::string_view kNumVHeads = "num_v_heads";
inline constexpr std::string_view kHeadKDim = "head_k_dim";
inline constexpr std::string_view kHeadVDim = "head_v_dim";
inline constexpr std::string_view kConvWidth = "conv_width";
inline constexpr std::string_view kScale = "scale";
inline constexpr std::string_view kActivation = "activation";
inline constexpr std::string_view kUseQkL2norm = "use_qk_l2norm";
inline constexpr std::string_view kStateDtype = "state_dtype";
inline constexpr std::string_view kConvStateDtype = "conv_state_dtype";
inline constexpr std::string_view kActDtype = "act_dtype";
inline constexpr std::string_view kSentinel = "sentinel";
inline constexpr std::string_view kNumBlocks = "num_blocks";
inline constexpr std::string_view kNormEps = "norm_eps";                   // optional
inline constexpr std::string_view kNormGate = "norm_gate";                 // optional: silu
inline constexpr std::string_view kInactiveConvOut = "inactive_conv_out";  // optional: zero
inline constexpr std::string_view kInactiveCoreOut = "inactive_core_out";  // optional: zero
inline constexpr std::string_view kLayerIds = "layer_ids";
// Version 2, all optional.
inline constexpr std::string_view kBlockStride = "block_stride";           // 0: the content
inline constexpr std::string_view kConvBlockStride = "conv_block_stride";  // 0: the content
inline constexpr std::string_view kIndexBits = "index_bits";               // 64
inline constexpr std::string_view kQkvPacking = "qkv_packing";             // traces from here on: flat
inline constexpr std::string_view kZPacking = "z_packing";                 // apart
inline constexpr std::string_view kBaPacking = "ba_packing";               // split
inline constexpr std::string_view kConvColumns = "conv_columns";           // W - 1
inline constexpr std::string_view kConvOrder = "conv_order";               // rolled
inline constexpr std::string_view kConvLayout = "conv_layout";             // columns
inline constexpr std::string_view kBlockSize = "block_size";

// /params/<l>, trace only.
inline constexpr std::string_view kParams = "params";
inline constexpr std::string_view kALog = "A_log";
inline constexpr std::string_view kDtBias = "dt_bias";
inline constexpr std::string_view kConvWeight = "conv_weight";
inline constexpr std::string_view kConvBias = "conv_bias";      // optional
inline constexpr std::string_view kNormWeight = "norm_weight";  // optional

// /steps and /steps/<l>. A log has index, sequence, rows, path and nothing else.
inline constexpr std::string_view kSteps = "steps";
inline constexpr std::string_view kIndex = "index";
inline constexpr std::string_view kSequence = "sequence";
inline constexpr std::string_view kRows = "rows";                   // optional
inline constexpr std::string_view kToken = "token";                 // optional
inline constexpr std::string_view kPosition = "position";           // optional
inline constexpr std::string_view kLaunchTokens = "launch_tokens";  // optional
inline constexpr std::string_view kPath = "path";                   // optional
inline constexpr std::string_view kMixedQkv = "mixed_qkv";
inline constexpr std::string_view kA = "a";
inline constexpr std::string_view kB = "b";
inline constexpr std::string_view kZ = "z";  // optional
inline constexpr std::string_view kEngineBlock = "engine_block";  // a capture's own
// Version 2, all optional.
inline constexpr std::string_view kDraft = "draft";
inline constexpr std::string_view kAccepted = "accepted";
inline constexpr std::string_view kTable = "table";
inline constexpr std::string_view kColumn = "column";
inline constexpr std::string_view kQkvz = "qkvz";  // instead of mixed_qkv and z
inline constexpr std::string_view kBa = "ba";      // instead of a and b

// /events (trace); step, layer, block, recurrent and conv are also the names in /recorded/state and in a log's /state.
inline constexpr std::string_view kEvents = "events";
inline constexpr std::string_view kStep = "step";
inline constexpr std::string_view kLayer = "layer";
inline constexpr std::string_view kBlock = "block";
inline constexpr std::string_view kKind = "kind";
inline constexpr std::string_view kSource = "source";  // also a log's /source
inline constexpr std::string_view kRecurrent = "recurrent";
inline constexpr std::string_view kConv = "conv";
// Version 2, optional.
inline constexpr std::string_view kWhy = "why";
inline constexpr std::string_view kConvOffset = "conv_offset";  // of the load rows and of /recorded/state
// A log's /events: block digests around each event.
inline constexpr std::string_view kBefore = "before";
inline constexpr std::string_view kAfter = "after";

// /recorded/<l>/<tap> and /recorded/state (trace); a tap's name is name_of(Tap).
inline constexpr std::string_view kRecorded = "recorded";
inline constexpr std::string_view kState = "state";

// The rest of a log.
inline constexpr std::string_view kLayers = "layers";         // in /model: the positions in layer_ids that were run
inline constexpr std::string_view kFirstStep = "first_step";  // attribute of /steps
inline constexpr std::string_view kPolicy = "policy";         // attribute of /state: full or every:N
inline constexpr std::string_view kDecode = "decode";         // groups in /contract
inline constexpr std::string_view kMixed = "mixed";
inline constexpr std::string_view kName = "name";
inline constexpr std::string_view kDigestPrefix = "digest_";  // root attributes: digests of the header's parts, in hex
inline constexpr std::string_view kContract = "contract";
inline constexpr std::string_view kOut = "out";
inline constexpr std::string_view kDigest = "digest";
inline constexpr std::string_view kPool = "pool";
inline constexpr std::string_view kCheckpoint = "checkpoint";
inline constexpr std::string_view kEvery = "every";  // attribute of /checkpoint: M
inline constexpr std::string_view kCommit = "commit";

inline constexpr std::string_view kProvenance = "provenance";

// What bf16 words are called where a file cannot name the type: @dtype="bfloat16" on a dataset.
inline constexpr std::string_view kDtype = "dtype";
inline constexpr std::string_view kBfloat16 = "bfloat16";

}  // namespace gdnsim::schema
