#include "cpu/exchange/rendezvous.h"

#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "cpu/exchange/meeting.h"

namespace moeprof {
namespace {

// Failed meetings that a missing rank might still come to; older ones are forgotten past this.
constexpr size_t kMaxRemembered = 1024;

}  // namespace

Rendezvous& Rendezvous::Instance() {
  // Never destroyed: at process exit threads of XLA may still be inside.
  static Rendezvous* const instance = new Rendezvous;
  return *instance;
}

void Rendezvous::Attend(const Attendance& who, std::vector<int64_t> signature,
                        std::shared_ptr<const void> published, Piece piece,
                        std::function<void(const Outcome&)> done) {
  const auto deadline = Clock::now() + who.timeout;
  auto meeting = Arrive(who, [&](Meeting& m) {
    return m.Add(who, std::move(signature), std::move(published), piece);
  });
  const int64_t device = who.devices[who.rank];
  const bool blocks = MayBlock(device);
  const auto patience_end = Clock::now() + (blocks ? kPatience : std::chrono::milliseconds(0));
  auto outcome = meeting->Wait(who, patience_end, deadline);
  if (blocks) Unblock(device);
  if (outcome) return done(*outcome);
  const auto wait_on = [meeting = std::move(meeting), who, deadline, done] {
    Outcome end;
    try {
      end = *meeting->Wait(who, deadline, deadline);
    } catch (const std::exception& error) {
      end = Failure{Fault::kInternal, error.what()};
    }
    done(end);
  };
  try {
    std::thread(wait_on).detach();
  } catch (const std::system_error&) {
    wait_on();  // No thread to be had: blocking XLA's is better than failing.
  }
}

void Rendezvous::Refuse(const Attendance& who, const std::string& reason) {
  Arrive(who, [&](Meeting& m) { return m.AddRefusal(who, reason); });
}

int64_t Rendezvous::AbortAll(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetFailed();
  for (auto& [key, meeting] : gathering_) meeting->Abort(reason);
  return static_cast<int64_t>(gathering_.size());
}

std::shared_ptr<Meeting> Rendezvous::Arrive(const Attendance& who,
                                            const std::function<bool(Meeting&)>& add) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (gathering_.size() > kMaxRemembered) ForgetFailed();
  auto& slot = gathering_[who.key];
  if (slot == nullptr) slot = std::make_shared<Meeting>(who);
  auto meeting = slot;
  // A rank that comes again (a loop) means the next meeting, so a complete one must not be found.
  if (add(*meeting)) gathering_.erase(who.key);
  return meeting;
}

void Rendezvous::ForgetFailed() {
  for (auto it = gathering_.begin(); it != gathering_.end();) {
    it = it->second->has_failed() ? gathering_.erase(it) : std::next(it);
  }
}

bool Rendezvous::MayBlock(int64_t device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return blocked_devices_.insert(device).second;
}

void Rendezvous::Unblock(int64_t device) {
  std::lock_guard<std::mutex> lock(mutex_);
  blocked_devices_.erase(device);
}

}  // namespace moeprof

int64_t MoeprofAbortRendezvous() {
  return moeprof::Rendezvous::Instance().AbortAll("the runtime was reset while ranks waited");
}
