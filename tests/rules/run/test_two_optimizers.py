"""Two optimizers with a loss of their own in one body: which update ruined what, when the script then raises."""

from __future__ import annotations

from pathlib import Path

from rules.watched import incidents_of

_TWO_OPTIMIZERS = """
    critic = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    policy = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    a, b = torch.optim.Adam(critic.parameters(), lr=1e18), torch.optim.Adam(policy.parameters(), lr=1e18)
    for i in range(6):
        s, r = torch.randn(16, 3), torch.randn(16, 1)
        with torch.no_grad():
            torch.distributions.Normal(policy(s), torch.ones(16, 1))
        q = critic(torch.cat([s, policy(s).detach()], 1))
        loss = ((q - r) ** 2).mean()
        a.zero_grad(); loss.backward(); a.step()
        p = -critic(torch.cat([s, policy(s)], 1)).mean()
        b.zero_grad(); p.backward(); b.step()
"""


def test_how_far_an_update_went_stays_known_when_an_error_ends_the_script(tmp_path: Path) -> None:
    """The size of the last update was noted at the step before it: a rate of 1e18 had no cause to be named."""
    incidents = incidents_of(_TWO_OPTIMIZERS, tmp_path)
    assert {incident.findings[0].code for incident in incidents} == {"RUN010"}
    assert incidents[0].history[0]["update_ratio"] > 1e17  # and not Inf: its square is beyond float32
