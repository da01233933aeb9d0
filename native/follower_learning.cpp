// Learns a step while the slow path records it.
#include <utility>

#include "follower.h"
#include "python_objects.h"

namespace opdump {

bool Follower::look(int kind, nb::handle func, nb::handle schema, nb::handle args, nb::handle kwargs, int64_t order,
                    const nb::set& constants) {
  const Unseen unseen(unseen_);
  now_ = Event();
  now_.kind = static_cast<EventKind>(kind);
  now_.order = order;
  now_.function = function_of(func, schema);
  if (now_.function->asynchronous || !look_at_site(now_.site, now_.kind)) return false;
  if (now_.kind != EventKind::kKernel) return true;
  PyObject* const by_name = named(kwargs);
  if (!look_at_arguments(*now_.function, args.ptr(), by_name)) return false;
  for (PyObject* each : arguments_) {
    if (!is_comparable(each)) return false;
    now_.arguments.push_back(nb::borrow(each));
  }
  const bool is_self_ignored = ignores_self(*now_.function, args.ptr(), by_name);
  for (const Found& each : found_) {
    Slot slot;
    View view;
    if (!observe(each, false, now_.function, is_self_ignored, nullptr, slot, view)) return false;
    slot.is_constant = constants.contains(nb::int_(each.slot));
    now_.inputs.push_back(std::move(slot));
  }
  return true;
}

nb::object Follower::learn(nb::handle args, nb::handle kwargs, nb::handle result, nb::handle link, nb::handle sources) {
  const Unseen unseen(unseen_);
  PyObject* const by_name = named(kwargs);
  now_.link = nb::borrow(link);
  for (nb::handle each : sources) now_.sources.push_back(nb::borrow(each));
  nb::list facts;
  if (now_.kind == EventKind::kKernel || now_.kind == EventKind::kAllocation) {
    std::vector<Found> counted;
    if (!outputs_of(*now_.function, args.ptr(), by_name, result.ptr(), found_) ||
        found_.size() != now_.sources.size() ||
        !gather(now_.function->counted, args.ptr(), by_name, counted, nullptr)) {
      return nb::none();
    }
    for (size_t i = 0; files_inputs_ && i < now_.inputs.size(); ++i) facts.append(facts_of(now_.inputs[i]));
    for (const Found& each : found_) {
      if (now_.kind != EventKind::kKernel) break;
      Slot slot;
      View view;
      const bool is_counted = is_among(each.tensor, counted);
      if (!observe(each, is_counted, nullptr, false, nullptr, slot, view)) return nb::none();
      if (files_outputs_) facts.append(facts_of(slot));
      now_.outputs.push_back(std::move(slot));
    }
  }
  events_->push_back(std::move(now_));
  now_ = Event();
  return facts;
}

nb::object Follower::learn_value(nb::handle name, nb::handle graph_id, nb::handle tensor, int64_t order) {
  const Unseen unseen(unseen_);
  now_ = Event();
  now_.kind = EventKind::kValue;
  now_.order = order;
  now_.name = nb::borrow(name);
  now_.graph_id = nb::borrow(graph_id);
  Slot slot;
  View view;
  if (!observe({0, 0, tensor.ptr()}, false, nullptr, false, nullptr, slot, view)) return nb::none();
  nb::list facts;
  facts.append(facts_of(slot));
  now_.outputs.push_back(std::move(slot));
  events_->push_back(std::move(now_));
  now_ = Event();
  return facts;
}

void Follower::learn_other() { events_->emplace_back(); }

void Follower::refuse() { events_->back() = Event(); }

nb::object Follower::facts_of(const Slot& slot) const {
  const size_t rank = slot.dimensions.size() / 2;
  nb::list shape, strides;
  for (size_t d = 0; d < rank; ++d) {
    shape.append(slot.dimensions[d]);
    strides.append(slot.dimensions[rank + d]);
  }
  return nb::make_tuple(slot.slot, slot.code, nb::tuple(shape), slot.storage, slot.offset, nb::tuple(strides),
                        slot.version, slot.source, slot.is_empty, slot.is_unwritten);
}

}  // namespace opdump
