// Any stream, written out as a trace.
#include <algorithm>

#include "gdnsim/recipe.hpp"

namespace gdnsim {
namespace {

std::int64_t load_rows_of(Stream& stream) {
  std::int64_t rows = 0;
  for (const Event& event : stream.events())
    if (event.kind == EventKind::load) rows = std::max<std::int64_t>(rows, event.source + 1);
  return rows;
}

bool has_path(const Stream& stream) {
  for (std::int64_t step = 0; step < stream.steps(); ++step)
    if (stream.plan(step).path != Path::decode) return true;
  return false;
}

}  // namespace

TraceHeader trace_header_of(Stream& stream) {
  TraceHeader header;
  header.model = stream.model();
  for (int layer = 0; layer < header.model.layers(); ++layer) {
    header.params.push_back(stream.params(layer));
    header.has_z = header.has_z || stream.has_z(layer);
  }
  header.steps = stream.steps();
  header.rows = stream.rows();
  header.events.assign(stream.events().begin(), stream.events().end());
  header.load_rows = load_rows_of(stream);
  header.has_path = has_path(stream);
  header.version = stream.version();
  for (std::int64_t step = 0; step < stream.steps(); ++step) {
    const StepPlan plan = stream.plan(step);
    header.has_drafts |= plan.in_launch();
    header.has_source |= !plan.source.empty();
    header.has_accepted |= !plan.accepted.empty();
    header.has_launch_tokens |= plan.launch_tokens != 0;
  }
  return header;
}

void copy_stream(Stream& stream, TraceWriter& writer, const std::function<void(std::int64_t)>& step_done) {
  Bytes recurrent, conv;
  for (std::int64_t row = 0, rows = load_rows_of(stream); row < rows; ++row) {
    stream.load_row(static_cast<std::int32_t>(row), recurrent, conv);
    writer.write_load_row(row, recurrent, conv);
  }
  StepInputs inputs;
  for (std::int64_t step = 0; step < stream.steps(); ++step) {
    writer.write_plan(stream.plan(step));
    for (int layer = 0; layer < stream.model().layers(); ++layer) {
      stream.inputs(step, layer, inputs);
      writer.write_inputs(step, layer, inputs);
    }
    if (step_done) step_done(step + 1);
  }
}

void write_trace(Stream& stream, const std::string& path, bool force,
                 const std::vector<std::pair<std::string, std::string>>& provenance,
                 const std::function<void(std::int64_t)>& step_done) {
  TraceHeader header = trace_header_of(stream);
  header.provenance = provenance;
  const std::unique_ptr<TraceWriter> writer = create_trace(path, header, force);
  copy_stream(stream, *writer, step_done);
  writer->finish();
}

}  // namespace gdnsim
