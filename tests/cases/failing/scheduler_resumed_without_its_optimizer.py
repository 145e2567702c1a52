# causes: RESUME_STATE_MISSING
import torch
from torch import nn

torch.manual_seed(0)


class Job:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 2))
        self.optimizer = torch.optim.NAdam(self.net.parameters(), 2e-3)
        self.schedule = torch.optim.lr_scheduler.PolynomialLR(self.optimizer, 60)

    def work(self, steps):
        for _ in range(steps):
            rows = torch.randn(12, 7)
            loss = nn.functional.cross_entropy(self.net(rows), (rows[:, 0] > 0).long())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()


job = Job()
job.work(30)
kept = {"net": job.net.state_dict(), "schedule": job.schedule.state_dict()}
job = Job()
job.net.load_state_dict(kept["net"])
job.schedule.load_state_dict(kept["schedule"])  # birth
job.optimizer.param_groups[0]["lr"] = job.schedule.get_last_lr()[0]
job.work(20)
