import torch

torch.manual_seed(0)
x = torch.randn(3, 6, requires_grad=True)
covariance = x.T @ x
jitter = 1e-12
while True:
    try:
        factor = torch.linalg.cholesky(covariance + jitter * torch.eye(6))
        break
    except torch.linalg.LinAlgError:
        jitter *= 100
factor.diagonal().log().sum().backward()
